"""Results of a run in the formats of other tools.

- `items`: the images of a run with their categories; safe names; copies and links
- `tables`: CSV and Parquet
- `folders`: folders, Hugging Face, FiftyOne
- `annotations`: COCO and Label Studio
- `onnx`: the model as ONNX, compared with the original
"""
