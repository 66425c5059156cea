"""A training step of DebGCD: this program's, without and with the bank, and the plain way's. Same weights, same batch."""

from __future__ import annotations

from debgcd.bench.lines import Line, compare
from debgcd.bench.networks import (
    BANK_VIEWS,
    Trainee,
    from_bank,
    half_labelled,
    ours,
    plain,
    random_images,
    read_bank,
    require_same_loss,
    write_random_bank,
)
from debgcd.bench.session import Session, Shape
from debgcd.bench.timing import Work
from debgcd.progress import progress
from debgcd.train.bank import BankTokens, token_shape

GOALS = {"ViT-B/16": 2.0}  # without the bank


def measure(session: Session) -> list[Line]:
    lines = []
    for shape in session.shapes:
        took = {name: seconds * shape.batch for name, seconds in step_seconds(session, shape).items()}
        what = f"{shape.name}, {shape.batch} images, "
        goal = GOALS.get(shape.name)
        lines += [
            compare("step", what + "2 tuned blocks", "s", took["fresh-2"], took["plain-2"], at_least=goal),
            compare("step", what + "2 tuned blocks, from the bank", "s", took["bank-2"], took["plain-2"]),
            compare("step", what + "1 tuned block, from the bank", "s", took["bank-1"], took["plain-1"]),
        ]
    return lines


def step_seconds(session: Session, shape: Shape) -> dict[str, float]:
    """Seconds an image of a step of each kind: fresh-2, plain-2, bank-2, bank-1, plain-1 (the number of tuned blocks)."""
    return session.once(("step", shape), lambda: _step_seconds(session, shape))


def _step_seconds(session: Session, shape: Shape) -> dict[str, float]:
    images = random_images(2 * shape.batch, session.sizes.views.size)
    label = half_labelled(shape.batch, session.sizes.known)
    with progress(f"step, {shape.name}") as report:
        fresh2, plain2 = ours(session, shape, 2), plain(session, shape, 2)
        bank1, plain1 = ours(session, shape, 1), plain(session, shape, 1)
        bank2 = ours(session, shape, 2)
        require_same_loss(fresh2, plain2, images, label)
        require_same_loss(bank1, plain1, images, label)
        tokens2, tokens1 = (bank_for(session, one, shape.batch) for one in (bank2, bank1))
        works = {
            "fresh-2": lambda: fresh2.step(fresh2.trunk(images), label),
            "plain-2": lambda: plain2.step(plain2.trunk(images), label),
            "bank-2": lambda: bank2.step(from_bank(tokens2, shape.batch), label),
            "bank-1": lambda: bank1.step(from_bank(tokens1, shape.batch), label),
            "plain-1": lambda: plain1.step(plain1.trunk(images), label),
        }
        seconds = session.seconds({name: Work(run, shape.batch) for name, run in works.items()}, report)
        # after as many steps on both sides: a wrong gradient would show here
        require_same_loss(fresh2, plain2, images, label)
    return seconds


def bank_for(session: Session, trainee: Trainee, images: int) -> BankTokens:
    """A bank of random tokens for so many images."""
    shape = (images, BANK_VIEWS + 1, *token_shape(trainee.network.backbone, session.sizes.views.size))
    path = session.folder / f"{'-'.join(map(str, shape))}.bank"
    session.once(path, lambda: write_random_bank(path, shape))
    return read_bank(path, shape)
