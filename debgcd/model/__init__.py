"""Backbones cut into trunk and tail, and the heads on top.

- `backbone`: the interface: trunk, tail, identity; device and precision
- `lite`: EfficientNet-Lite, which works offline
- `vit`: vision transformers
- `folded`: cheaper, exact forms of their blocks
- `load`: name -> backbone; the hub's format, and DINO's own files
- `text_image`: how well words fit images, by a model in CLIP's form
- `heads`: prototypes, projections, centres
- `parts`: categories that a reviewer split
- `optimiser`: what training asks of an optimiser; SGD, and the learning rate
- `network`: backbone, heads and memory together; the EMA teacher; a queue
- `prompts`: what learns before the trunk
"""
