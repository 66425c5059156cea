"""A classifier that is made at the end from the features of all images: a wrapper for any method that trains a classifier.

Training improves the features faster than its classifier follows. So the answer that people get is settled on the tuned features
(cluster/settle.py); evaluation.json shows the trained classifier beside it.
"""

from __future__ import annotations

from torch import Tensor, nn

from debgcd.methods.base import TEMPERATURE, Context, Method
from debgcd.methods.shared import answer, known_first
from debgcd.model.heads import Settled
from debgcd.model.network import Output

SETTLED = "settled"  # the name of the head


def with_settled(method: type[Method]) -> type[Method]:
    """A subclass of the method whose answers are settled."""
    return type(f"{method.__name__}Settled", (SettledAnswer, method), {})


class SettledAnswer(Method):
    """Mixin that adds the settled head to the next class in the method resolution order; see `with_settled`."""

    @property
    def final_answers(self) -> tuple[str, ...]:
        return (SETTLED,)

    def heads(self) -> nn.ModuleDict:
        heads = super().heads()
        heads[SETTLED] = Settled(self.sizes.width, self.sizes.k, self.sizes.images)
        return heads

    def before_training(self, context: Context) -> None:
        """Run the method's own hook; then fill the head with the frozen answer, if the hook has not done so."""
        super().before_training(context)
        head = context.network.heads[SETTLED]
        assert isinstance(head, Settled)
        if not head.filled:
            answer(self, context)

    def finalise(self, context: Context) -> None:
        """Run the method's own hook, then settle on the tuned features; categories keep the trained classifier's numbers."""
        super().finalise(context)
        settled = answer(self, context).category
        trained = super().scores(context.network.from_feature(context.features(), self.answers))["gcd"].argmax(1)
        # known classes have their numbers by their labels, whatever the two classifiers say; only new categories are matched
        known = self.sizes.known
        both = (settled >= known) & (trained >= known)
        new = self.sizes.k - known
        order = known_first(settled[both] - known, trained[both] - known, new, new).to(settled.device)
        head = context.network.heads[SETTLED]
        assert isinstance(head, Settled)
        head.weight[known:] = head.weight[known + order]

    def scores(self, output: Output) -> dict[str, Tensor]:
        """The settled answer first, where its head was asked; then those of the trained heads."""
        if SETTLED not in output:
            return super().scores(output)
        settled = {"gcd": (output[SETTLED] / TEMPERATURE).softmax(1)}
        if not set(self.answers) <= set(output.heads):
            return settled
        trained = super().scores(output)
        return settled | {"trained" if name == "gcd" else name: p for name, p in trained.items()}
