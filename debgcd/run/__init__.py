"""The run directory and the files in it.

- `directory`: its files, creating it, and opening it again
- `categories`: the categories of a model, with stable ids
- `model_folder`: the trained model on disk, with its card
- `parts_file`: the parts of categories that a reviewer split
- `so_far_file`: the images of all categories as voters, by which later images look new
- `added`: batches of images that came to a finished run
- `hub`: a model folder pushed to a model hub, and fetched from it
- `predictions`: the table of predictions; the only file that knows its columns and formats
"""
