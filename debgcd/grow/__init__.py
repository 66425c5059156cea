"""What a finished run learns without training: splits of a reviewer, and batches of new images.

- `features`: the features of a run's images by its network, kept in the cache
- `add`: a batch of new images into a run
- `splits`: the model of a run, with the parts of categories that a reviewer split
"""
