"""A method of one's own: Ward's hierarchical clustering of the features, in a package of its own."""

import torch
from sklearn.cluster import AgglomerativeClustering
from torch import nn
from torch.nn.functional import normalize

from debgcd.methods.base import About, Context, Method
from debgcd.methods.shared import fill_centres, known_first
from debgcd.model.backbone import TrunkSplit
from debgcd.model.heads import Centres


class Ward(Method):
    """Clusters are the answer: their means are the head, so that `predict` takes the nearest one."""

    about = About("Ward", 1963, "JASA", "hierarchical clustering of the frozen features")
    cut = TrunkSplit(tuned=0)
    trains = False
    clusters = True

    def heads(self) -> nn.ModuleDict:
        return nn.ModuleDict({"classifier": Centres(self.sizes.width, self.sizes.k)})

    def finalise(self, context: Context) -> None:
        unit = normalize(context.features(), dim=1)
        found = torch.from_numpy(AgglomerativeClustering(self.sizes.k).fit_predict(unit.cpu().numpy()))
        # clusters in the order that the labels ask for: known classes first
        order = known_first(found, context.label, self.sizes.k, self.sizes.known)
        means = torch.stack([unit[found == number].mean(0) for number in range(self.sizes.k)])
        fill_centres(context, means[order])
