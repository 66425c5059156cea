"""How fast is it, how much memory does it take: `debgcd bench`. Times of this program and of the plain way, side by side."""

PARTS = {
    "step": "a training step against the plain way",
    "trunk": "the trunk against bare matrix products",
    "epoch": "an epoch and a whole schedule, computed from measured parts",
    "decode": "JPEG files to 256 pixels against Pillow",
    "predict": "files to categories",
    "memory": "peak memory of training with the view bank",
    "scaling": "time and memory against the number of images and of categories",
}
