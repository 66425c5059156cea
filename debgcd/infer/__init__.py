"""A network's answers.

- `infer`: from centre crops or features to categories and novelty
- `predict`: a model on new images, in resumable parts
- `where`: where in an image the network looks
"""
