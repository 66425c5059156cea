"""`debgcd bench`: speed and memory of this program, compared with the plain way."""

PARTS = {
    "step": "a training step against the plain way",
    "epoch": "an epoch and a whole schedule, computed from measured parts",
    "decode": "JPEG files to 256 pixels against Pillow",
    "predict": "files to categories",
}
