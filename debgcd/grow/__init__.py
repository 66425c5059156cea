"""What a finished run learns without training: splits of a reviewer.

- `features`: the features of a run's images by its network, kept in the cache
- `splits`: the model of a run, with the parts of categories that a reviewer split
"""
