"""Where the trunk's output comes from.

- `sources`: tokens of fresh views, or of a mix of fresh and stored views
- `bank`: tokens of a fixed set of views per image, computed once and kept on disk
- `image_cache`: resized pixels kept on disk, for runs with fresh views
"""
