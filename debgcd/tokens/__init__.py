"""Where the trunk's output comes from.

- `sources`: fresh views through the trunk, or a mix of fresh and banked ones
- `bank`: tokens of a fixed set of views per image, computed once and kept on disk
- `image_cache`: resized pixels kept on disk, for runs that cut fresh views
"""
