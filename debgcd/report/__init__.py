"""The results of a run to look at.

- `look`: asks a finished run's network what its report needs
- `untuned`: what the features before training say of the images
- `trust`: how far to trust a category, without truth
- `suggest`: splits and merges that the features suggest
- `describe`: what to show of each category; features in two dimensions
- `summary`: what a run says of itself in sentences, and what to do next
- `page`: the report as one HTML file, from templates/
- `inline`: categories and report inside a notebook
- `plots`: the paper's figures and the scores of K, with matplotlib
"""
