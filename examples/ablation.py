"""An ablation: what does each part of the answer before training bring?

    python examples/ablation.py OUT

Every part is one configuration value, so that a row of the table is one line of code. `debgcd config --method debgcd` prints all values;
of DebGCD's own parts, `overrides={"ablation": {"detector": False, "guidance": False}}` switches two off.
"""

import sys
from pathlib import Path

import numpy as np
from digits import digits
from matplotlib.figure import Figure

from debgcd import Discoverer
from debgcd.evaluate import clustering_accuracy

ROWS = {
    "all parts": {},
    "no whitening": {"whiten": False},
    "no mean shift": {"rounds": 0},
    "not guided by novelty": {"guided": False},
    "without the linear head": {"steps": 0},
}

out = Path(sys.argv[1])
out.mkdir(parents=True, exist_ok=True)
images, digit = digits(500)
labelled = (digit < 5) & (np.arange(len(digit)) % 2 == 0)
labels = np.where(labelled, digit, -1)
scores = {}
for name, values in ROWS.items():
    found = Discoverer(k=10, method="pim", verbose=False, overrides={"pim": values}).fit(list(images), labels)
    scores[name] = clustering_accuracy(digit[~labelled], found.labels_[~labelled], 5)
    print(
        f"{name:24s} All {100 * scores[name].all:.1f}  Old {100 * scores[name].old:.1f}  New {100 * scores[name].new:.1f}"
    )
print("one seed, 500 digits: differences of a point or two mean nothing")

figure = Figure(figsize=(7, 2.6), layout="constrained")
axes = figure.subplots()
axes.barh(list(scores), [100 * score.all for score in scores.values()], color="#2563a8")
axes.invert_yaxis()
axes.set_xlabel("All: per cent of the unlabelled digits in the right category")
axes.set_xlim(0, 100)
figure.savefig(out / "ablation.png", dpi=110)
