"""One image file -> RGB pixels, or the reason why it cannot be used.

- `decode`: any file and colour mode -> RGB, with limits on memory; truncated files are detected
- `jpeg`: JPEGs at roughly the size needed
- `crop`: a box in a file is an image of its own; upright images
"""
