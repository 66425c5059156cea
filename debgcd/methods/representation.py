"""L_rep: the contrastive part that GCD, SimGCD and DebGCD have in common."""

from __future__ import annotations

from torch import Tensor

from debgcd import losses
from debgcd.config import GcdConfig
from debgcd.methods.protocol import Batch


def representation(projection: Tensor, batch: Batch, gcd: GcdConfig) -> tuple[Tensor, dict[str, Tensor | float]]:
    """(1 − λ) · InfoNCE over all rows + λ · supervised contrast over the labelled ones; and the two terms by name.

    projection: (2B, d), unit rows.
    """
    info_nce = losses.info_nce(projection, gcd.unlabelled_temperature)
    contrastive = losses.supervised_contrastive(projection[batch.labelled], batch.y, gcd.labelled_temperature)
    total = (1 - gcd.supervised_weight) * info_nce + gcd.supervised_weight * contrastive
    return total, {"info_nce": info_nce, "supervised_contrastive": contrastive}
