"""A method of one's own: a class in a package of yours, and a line in its pyproject.toml.

    pip install -e examples/own_method
    python examples/own_method.py OUT

Afterwards every command knows it: `debgcd train photos/ --method ward`.
"""

import sys
from pathlib import Path

import numpy as np
from digits import digits
from matplotlib.figure import Figure

from debgcd import Discoverer
from debgcd.evaluate import clustering_accuracy

out = Path(sys.argv[1])
out.mkdir(parents=True, exist_ok=True)
images, digit = digits(500)
labelled = (digit < 5) & (np.arange(len(digit)) % 2 == 0)
labels = np.where(labelled, digit, -1)
scores = {}
for method in ("kmeans", "ward", "pim"):
    found = Discoverer(k=10, method=method, verbose=False).fit(list(images), labels)
    scores[method] = clustering_accuracy(digit[~labelled], found.labels_[~labelled], 5)
    print(
        f"{method:8s} All {100 * scores[method].all:.1f}  Old {100 * scores[method].old:.1f}  New {100 * scores[method].new:.1f}"
    )

figure = Figure(figsize=(7, 1.9), layout="constrained")
axes = figure.subplots()
axes.barh(list(scores), [100 * score.all for score in scores.values()], color=["#9ca3af", "#b4531a", "#9ca3af"])
axes.invert_yaxis()
axes.set_xlabel("All: per cent of the unlabelled digits in the right category")
axes.set_xlim(0, 100)
figure.savefig(out / "own_method.png", dpi=110)
