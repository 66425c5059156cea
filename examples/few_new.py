"""Few new among many known: which of a thousand images show a defect that nobody has labelled yet?

    python examples/few_new.py OUT

Here nine digits are the known good parts, most of them labelled, and a handful of nines is the defect. The images are looked at in the
order of their novelty.
"""

import sys
from pathlib import Path

import numpy as np
from digits import digits
from PIL import Image

from debgcd import Discoverer
from debgcd.evaluate import novelty_auroc

DEFECTS, SHOWN = 15, 30

out = Path(sys.argv[1])
out.mkdir(parents=True, exist_ok=True)
images, digit = digits(1000)
defect = digit == 9
kept = ~defect | (np.cumsum(defect) <= DEFECTS)
images, digit, defect = images[kept], digit[kept], defect[kept]
unlabelled = defect | (np.arange(len(digit)) % 4 == 0)
labels = [-1 if none else int(number) for none, number in zip(unlabelled, digit, strict=True)]

# pim: no training; 9 known classes and at least one new one
discoverer = Discoverer(k=10, method="pim", verbose=False).fit(list(images), labels)
novelty = discoverer.novelty(list(images[unlabelled]))
order = np.argsort(-novelty)
hit = defect[unlabelled][order]
print(f"{unlabelled.sum()} unlabelled images, {hit.sum()} of them defects")
for looked in (10, 20, 40):
    print(f"the {looked} with the highest novelty hold {hit[:looked].sum()} defects")
print(f"AUROC of novelty: {100 * novelty_auroc(novelty, defect[unlabelled]):.1f}")

# the highest first, ten in a row; defects have an orange frame
sheet = Image.new("RGB", (10 * 60, SHOWN // 10 * 60), "white")
for place, i in enumerate(np.flatnonzero(unlabelled)[order[:SHOWN]]):
    tile = Image.new("RGB", (56, 56), "#b4531a" if defect[i] else "#e5e7eb")
    tile.paste(Image.fromarray(images[i]).resize((48, 48)), (4, 4))
    sheet.paste(tile, (place % 10 * 60 + 2, place // 10 * 60 + 2))
sheet.save(out / "few_new.png")
