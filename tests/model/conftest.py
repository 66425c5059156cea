"""What the tests of the backbones share."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pytest
import torch


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Models this small run five times slower when threads of a busy machine wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection fails the test."""

    def refuse(*_: Any) -> None:
        pytest.fail("a test tried to reach the network")

    monkeypatch.setattr(socket.socket, "connect", refuse)
