"""Optimisers of a network's trained parameters: what training asks of one, the default SGD, and the learning rate."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from debgcd.config import schedules
from debgcd.config.schedules import Progress
from debgcd.config.schema import ScheduleConfig
from debgcd.model.network import Network


class Optimiser(Protocol):
    """What training asks of an optimiser; all of torch.optim have it.

    A group may have a `share`: its learning rate as a multiple of the schedule's; or a `rate`, a function of the progress that
    gives its learning rate instead. Checkpoints keep `state`.
    """

    param_groups: list[dict[str, Any]]

    @property
    def state(self) -> Mapping[Any, dict[str, Any]]:
        """Tensors and numbers of each parameter, by name; a parameter that is not in it gets an empty entry when asked for."""

    def zero_grad(self) -> None: ...

    def step(self) -> Any: ...


class SGD:
    """torch.optim.SGD with momentum, to the bit. Torch's own loads its compiler when it is made: a third of a run's start.

    param_groups: dicts with `params`, `weight_decay` and whatever the caller keeps there; each gets `lr` and `momentum`.
    """

    def __init__(self, param_groups: list[dict[str, Any]], lr: float, momentum: float):
        self.param_groups = [{"lr": lr, "momentum": momentum, **group} for group in param_groups]
        self.state: dict[nn.Parameter, dict[str, Tensor]] = defaultdict(dict)

    def zero_grad(self) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """v ← momentum · v + (gradient + decay · θ); θ ← θ − lr · v. A parameter without a gradient stays as it is."""
        for group in self.param_groups:
            parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
            if not parameters:
                continue
            directions = [parameter.grad for parameter in parameters]
            if group["weight_decay"]:
                directions = list(torch._foreach_add(directions, parameters, alpha=group["weight_decay"]))
            if group["momentum"]:
                directions = self._with_momentum(parameters, directions, group["momentum"])
            torch._foreach_add_(parameters, directions, alpha=-group["lr"])

    def _with_momentum(self, parameters: list[nn.Parameter], directions: list[Tensor], momentum: float) -> list[Tensor]:
        kept = [self.state[parameter].get("momentum") for parameter in parameters]
        old = [(buffer, direction) for buffer, direction in zip(kept, directions, strict=True) if buffer is not None]
        if old:
            buffers, added = map(list, zip(*old, strict=True))
            torch._foreach_mul_(buffers, momentum)
            torch._foreach_add_(buffers, added)
        for parameter, buffer, direction in zip(parameters, kept, directions, strict=True):
            if buffer is None:
                self.state[parameter]["momentum"] = direction.clone()
        return [self.state[parameter]["momentum"] for parameter in parameters]


def sgd(network: Network, schedule: ScheduleConfig) -> SGD:
    """SGD over the tuned blocks and the heads; no weight decay on biases and other 1-D tensors unless `decay_all`."""
    kinds: dict[tuple[float, float], list[torch.nn.Parameter]] = {}
    for name, parameter in network.trained().items():
        decay = schedule.weight_decay if parameter.ndim > 1 or schedule.decay_all else 0.0
        share = schedule.tail_lr if name.startswith("tail.") else 1.0
        kinds.setdefault((decay, share), []).append(parameter)
    # few groups: a GPU then updates all tensors of one at once
    groups = [{"params": same, "weight_decay": decay, "share": share} for (decay, share), same in kinds.items()]
    return SGD(groups, schedule.lr, schedule.momentum)


def set_learning_rate(optimiser: Optimiser, schedule: ScheduleConfig, batch: int, progress: Progress) -> float:
    """From lr · batch / 128 along a cosine to its share `lr_end`, or down in steps to a tenth; returns the heads' rate."""
    top = schedule.lr * batch / 128
    if schedule.lr_falls is None:
        lr = schedules.cosine(top, top * schedule.lr_end, progress.share)
    else:
        lr = top * 0.1 ** sum(progress.share >= share for share in schedule.lr_falls)
    for group in optimiser.param_groups:
        group["lr"] = group["rate"](progress) if "rate" in group else lr * group.get("share", 1.0)
    return lr
