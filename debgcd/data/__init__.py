"""From files to pixels, and which image a step sees.

- `manifest`: images, labels, truth, splits and groups; written as CSV, made from Python objects
- `sources`: folders, CSV and Parquet -> manifest
- `megadetector`: MegaDetector's results -> boxes
- `python_inputs`: images and labels given in Python
- `scan`: decodes every image once before a run
- `fingerprints`: content hashes of image files, cached by path and stat
- `thumbnails`: small pictures, kept in the cache
- `copies`: copies among the images, class names that look the same
- `sampler`: random numbers and batches as functions of (seed, step)
- `views`: resize, crop, flip and colours as tensor operations
- `loader`: decodes in worker processes
- `image`: one image file -> pixels
"""
