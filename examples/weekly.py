"""Week after week: new images join a finished run, and what fits none of its categories becomes new ones.

    python examples/weekly.py OUT

Nothing is trained again, and no image of an earlier week changes its category. How many new categories a week brings is estimated: from
images as small as these too many, which `discoverer.merge(["new-03", "new-04"])` or the review makes one.
"""

import sys
from collections import Counter
from pathlib import Path

import numpy as np
from digits import digits

from debgcd import Discoverer
from debgcd.demo import draw_exemplars
from debgcd.review.log import reviewed_predictions

WEEKS = [(0, 1, 2, 3, 4), (0, 1, 2, 5, 6), (0, 3, 4, 6, 7)]  # digits that each week's images show

out = Path(sys.argv[1])
images, digit = digits(1797)
week = np.arange(len(digit)) // 599
batches = [np.flatnonzero((week == number) & np.isin(digit, shown)) for number, shown in enumerate(WEEKS)]

# in the first week somebody labels every second image of 0 to 2
first = batches[0]
labels = [int(digit[i]) if digit[i] < 3 and i % 2 else -1 for i in first]
discoverer = Discoverer(k=5, method="pim", run=out / "run", verbose=False).fit(list(images[first]), labels)
for number, batch in enumerate(batches):
    if number:
        discoverer.partial_fit(list(images[batch]))
    names = Counter(discoverer.categories_[category].id for category in discoverer.labels_)
    print(f"week {number + 1}, digits {WEEKS[number]}: " + ", ".join(f"{n} {names[n]}" for n in sorted(names)))
draw_exemplars(*reviewed_predictions(out / "run"), out / "weekly.png")
