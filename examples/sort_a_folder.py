"""Sort a folder: some classes have labels, the others are to be discovered.

    python examples/sort_a_folder.py OUT

With images of your own, only the last three commands are needed.
"""

import subprocess
import sys
from pathlib import Path

from digits import digits
from PIL import Image

from debgcd.demo import draw_exemplars
from debgcd.review.log import reviewed_predictions

out = Path(sys.argv[1])
photos, run, found = out / "photos", out / "run", out / "sorted"

# digits 0 to 4 are known: every second image of them has a label; 5 to 9 have none
for i, (pixels, digit) in enumerate(zip(*digits(600), strict=True)):
    folder = photos / "labelled" / str(digit) if digit < 5 and i % 2 else photos / "unlabelled"
    folder.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(folder / f"{i:04d}.png")


def debgcd(*words: object) -> None:
    print("$ debgcd", *words)
    subprocess.run([sys.executable, "-m", "debgcd", *map(str, words)], check=True)


# --epochs 0: a first answer in seconds; leave it out to train
debgcd("check", photos, "--quiet")
debgcd("train", photos, "--k", 10, "--epochs", 0, "-o", run, "--quiet", "--no-report")
debgcd("export", run, "--to", "folders", "-o", found, "--quiet")

for folder in sorted(path for path in found.iterdir() if path.is_dir()):
    print(f"{folder.name}: {len(list(folder.iterdir()))} images")
draw_exemplars(*reviewed_predictions(run), out / "sort_a_folder.png")
