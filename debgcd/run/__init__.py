"""A run directory, and what is in it.

- `directory`: how it begins, what it holds
- `categories`: known classes and new-01, ...: stable ids
- `model_folder`: the trained model on disk, with its card
- `predictions`: the table of predictions: its columns, CSV and Parquet, read and written here alone
"""
