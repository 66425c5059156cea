"""InfoSieve (Rastegar et al. 2023): a binary code per image, truncated to the length that its category needs.

Losses, weights and schedules follow the public code (MIT). Pseudo-labels come from semi-supervised k-means before every
epoch; the public code also limits the size of clusters in its first iterations, this file does not. Code and mask are
computed from the projected feature.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from debgcd import losses
from debgcd.cluster.kmeans import kmeans
from debgcd.config.schedules import Progress
from debgcd.config.schema import option
from debgcd.methods.base import About, Batch, Context, Loss
from debgcd.methods.shared import ContrastiveMethod, GCDOptions, memory_of
from debgcd.model.backbone import TrunkSplit
from debgcd.model.heads import MLP, Projection, PrototypeProjection
from debgcd.model.network import Network


@dataclass(frozen=True)
class InfoSieveObjective:
    """L = L_in + β L_code + ζ L_code_cond + η L_cat + δ L_length + μ L_mask_cond; all weights are the public code's."""

    smoothing: float = option(
        0.5, "of InfoNCE's target: 1 for CUB, 0.5 for other fine-grained sets, 0.1 for generic", 0, 1
    )
    bits: int = option(40, "of a code", 1, 4096)
    hidden: int = option(128, "width of the MLPs on codes", 1, 65536)
    age: float = option(
        20.0, "steepness of the codes' tanh at the end, from 0.1: it grows by 0.1 per epoch of 200", 0.1, 1e4
    )
    code_weight: float = option(1.0, "β", 0, 1e6)
    code_condition_weight: float = option(0.01, "ζ", 0, 1e6)
    category_weight: float = option(0.01, "η", 0, 1e6)
    length_weight: float = option(0.1, "δ", 0, 1e6)
    mask_condition_weight: float = option(0.01, "μ", 0, 1e6)


@dataclass(frozen=True)
class InfoSieveOptions(GCDOptions):
    infosieve: InfoSieveObjective = InfoSieveObjective()


class Sieve(nn.Module):
    """(N, width) -> (N, d + 2 · bits + M): the projected feature, the code, its mask, and logits of the known classes."""

    def __init__(self, projection: Projection | PrototypeProjection, out: int, known: int, options: InfoSieveObjective):
        super().__init__()
        self.projection, self.parts = projection, [out, options.bits, options.bits, known]
        self.code, self.mask = (MLP(out, options.hidden, options.bits, 4) for _ in range(2))
        self.category = MLP(options.bits, options.hidden, known, 4)
        self.register_buffer("age", torch.tensor(0.1))
        self.register_buffer("weight", 2.0 ** -torch.arange(options.bits))  # per bit

    def forward(self, feature: Tensor) -> Tensor:
        z, age = self.projection(feature), self.get_buffer("age")
        code = (self.code(z) * age).tanh()
        mask = ((self.mask(z) + 1 / (age + 1)).tanh() + 1) / 2
        return torch.cat([z, code, mask, self.category(mask * code * self.get_buffer("weight"))], 1)


class InfoSieve(ContrastiveMethod):
    """GCD's contrasts by distance with pseudo-labels, the same on codes, and a penalty on the length of codes."""

    about = About("InfoSieve", 2023, "NeurIPS", "codes of bits, cut to the length that a category needs")
    Options = InfoSieveOptions
    cut = TrunkSplit(tuned=2)
    options: InfoSieveOptions

    def heads(self) -> nn.ModuleDict:
        heads, shape = super().heads(), self.options.heads
        out = shape.projection_prototypes or shape.projection_width
        heads["projection"] = Sieve(self.projection(), out, self.sizes.known, self.options.infosieve)
        return heads

    def memory(self, network: Network) -> nn.Module:
        """The pseudo-label of each image."""
        return memory_of(guess=torch.zeros(self.sizes.images, dtype=torch.int64))

    def before_epoch(self, context: Context, progress: Progress) -> None:
        network, share = context.network, progress.epoch / progress.epochs
        last = max(1, progress.epochs - 1)
        unit = normalize(context.features(), dim=1)
        guess = kmeans(unit, context.label, self.sizes.k, seed=self.config.seed, restarts=10, iterations=10).assignment
        network.get_buffer("memory.guess").copy_(guess)
        end, weight = self.options.infosieve.age, network.get_buffer("heads.projection.weight")
        network.get_buffer("heads.projection.age").fill_(0.1 + (end - 0.1) * progress.epoch / last)
        weight.copy_((2 - share) ** -torch.arange(len(weight), dtype=torch.float64))

    def loss(self, network: Network, batch: Batch, progress: Progress) -> Loss:
        options, sieve = self.options.infosieve, network.heads["projection"]
        assert isinstance(sieve, Sieve)
        z, code, mask, category = network(batch.tokens)["projection"].split(sieve.parts, 1)
        weight = network.get_buffer("heads.projection.weight")
        # as in the public code, the length keeps the weights of the first epoch
        first_weight = (-torch.arange(options.bits, device=mask.device, dtype=mask.dtype)).exp2()
        guess = network.get_buffer("memory.guess")[batch.image]
        inner = self._contrasts(z, z, batch, guess, relative=False)
        codes = self._contrasts(normalize(code, dim=1), code * weight, batch, guess, relative=True)
        named = {
            "inner": (1.0, inner),
            "code": (options.code_weight, codes),
            "code_condition": (options.code_condition_weight, losses.code_condition(code)),
            "category": (
                options.category_weight,
                losses.categories_of_codes(category[batch.labelled], batch.y.repeat(2)),
            ),
            "length": (options.length_weight, losses.code_length(mask, first_weight)),
            "mask_condition": (options.mask_condition_weight, losses.mask_condition(mask)),
        }
        total = torch.stack([part * value for part, value in named.values()]).sum()
        return Loss(total, {name: value for name, (_, value) in named.items()})

    def _contrasts(self, alone: Tensor, together: Tensor, batch: Batch, guess: Tensor, relative: bool) -> Tensor:
        """(1 − λ) · InfoNCE on `alone` + λ · the mean of both supervised contrasts on `together`: (2B, d) each."""
        options = self.options.baseline
        apart, own = (losses.nearness(x, relative) for x in (alone, together[batch.labelled]))
        all_rows = apart if alone is together else losses.nearness(together, relative)
        nce = losses.smoothed_nce(apart, self.options.infosieve.smoothing, options.unlabelled_temperature)
        supervised = losses.near_contrastive(own, batch.y, options.labelled_temperature)
        supervised = (supervised + losses.near_contrastive(all_rows, guess, options.labelled_temperature)) / 2
        return (1 - options.supervised_weight) * nce + options.supervised_weight * supervised
