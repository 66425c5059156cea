"""Results of a run in the formats of other tools.

- `items`: the images of a run with their categories; safe names; copies and links
- `tables`: CSV and Parquet
- `folders`: folders, Hugging Face, FiftyOne
- `annotations`: COCO and Label Studio
- `megadetector`: MegaDetector's format, for camera-trap tools
- `atlas`: images, places and features for embedding-atlas and LightlyStudio
- `onnx`: the model as ONNX, compared with the original
"""
