"""Sets in miniature have fewer images than published."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from miniatures import Made

from debgcd.data.benchmarks import Facts, facts_of

Published = Callable[[str, Made], Facts]


@pytest.fixture
def published(monkeypatch: pytest.MonkeyPatch) -> Published:
    """published("cub", made): from here on the miniature's numbers of images are those that were published."""

    def set_to(name: str, made: Made) -> Facts:
        facts = replace(facts_of(name), train=len(made.train), test=len(made.test))
        monkeypatch.setattr("debgcd.data.benchmarks.facts_of", lambda _: facts)
        return facts

    return set_to
