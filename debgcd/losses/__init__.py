"""The paper's equations as pure functions; `docs/paper.md` maps them all.

`paper` has Eq. 1–2, 4–7 and 9–11, `contrastive` the contrasts of all methods; `peers` has what else the methods compute that
the paper is compared with, and `docs/methods.md` maps these.

Shapes: B images, two views stacked as 2B rows (i and i+B are the views of one image), K categories, M known ones. Every
function is defined on empty sets: it returns a zero that is still part of the graph.
"""

from debgcd.losses.contrastive import *
from debgcd.losses.paper import *
from debgcd.losses.peers import *
