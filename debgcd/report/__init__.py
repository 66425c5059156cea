"""What was found, to be looked at.

- `look`: asks a finished run's network what its report needs
- `trust`: how far to trust a category, without truth
- `describe`: what to show of each category; features in two dimensions
- `thumbnails`: small pictures, kept in the cache
- `page`: the report as one HTML file, from templates/
- `plots`: the paper's figures, with matplotlib
- `figures`: a picture of the categories; the score per K
"""
