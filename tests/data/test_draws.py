"""Random numbers without state: uniform, independent, and the same for ever."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from debgcd.data.sampler import stream_seed, uniform

MASK = 2**64 - 1
COUNT = 20_000


def slow(seed: int, stream: str, *counters: int) -> float:
    """The same numbers from Python's integers: SplitMix64's finaliser over a state that takes up one counter at a time."""

    def mix(x: int) -> int:
        x = (x + 0x9E3779B97F4A7C15) & MASK
        x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
        return x ^ (x >> 31)

    state = int.from_bytes(hashlib.sha256(f"{seed}/{stream}".encode()).digest()[:8], "little")
    for counter in counters:
        state = mix(state ^ mix(((counter & MASK) + 0x9E3779B97F4A7C15) & MASK))
    return (state >> 11) / 2**53


def test_golden_values() -> None:
    """These numbers decide every run; whoever changes them makes all published results unrepeatable."""
    assert stream_seed(0, "sample") == 16533194087481088296
    assert stream_seed(1, "head/classifier") == 10915098809021580453
    assert [float(x).hex() for x in uniform(0, "sample", np.arange(4))] == [
        "0x1.5b2652b2b5dbcp-3",
        "0x1.c96b40f2a697fp-1",
        "0x1.2d600e342b120p-2",
        "0x1.cef30a6b5cddap-2",
    ]
    assert float(uniform(7, "view", 3, 1, 2)).hex() == "0x1.489d87644eadbp-1"
    assert float(uniform(-1, "x", -5)).hex() == "0x1.b6fd451244610p-2"
    assert float(uniform(0, "x")).hex() == "0x1.1e22e30ab13f8p-2"


@pytest.mark.parametrize("seed", [0, 1, -3, 2**70])
def test_the_arithmetic_is_that_of_64_bits(seed: int) -> None:
    counters = [0, 1, 2, 2**31, 2**62, -1]
    for first in counters:
        for second in counters:
            assert float(uniform(seed, "view", first, second)) == slow(seed, "view", first, second)


def test_counters_broadcast_and_each_number_stands_alone() -> None:
    rows, columns = np.arange(3)[:, None], np.arange(4)
    grid = uniform(5, "s", rows, columns)
    assert grid.shape == (3, 4)
    assert grid.dtype == np.float64
    for i in range(3):
        for j in range(4):
            assert grid[i, j] == uniform(5, "s", i, j)
    np.testing.assert_array_equal(uniform(5, "s", rows[::-1], columns), grid[::-1])
    assert uniform(5, "s", np.empty(0, np.int64)).shape == (0,)


@pytest.mark.parametrize("seed", [0, 1, 12345])
def test_uniform(seed: int) -> None:
    """Mean, spread, the shares of 100 bins and of the last bits are those of a uniform number; 5 sigma each."""
    x = uniform(seed, "sample", np.arange(COUNT))
    assert x.min() >= 0
    assert x.max() < 1
    assert abs(x.mean() - 1 / 2) < 5 * (1 / 12 / COUNT) ** 0.5
    assert abs(x.var() - 1 / 12) < 5 * (1 / 180 / COUNT) ** 0.5
    chi = ((np.bincount((x * 100).astype(int), minlength=100) - COUNT / 100) ** 2 / (COUNT / 100)).sum()
    assert abs(chi - 99) < 5 * (2 * 99) ** 0.5
    low = (x * 2**53).astype(np.int64) & 1
    assert abs(low.mean() - 1 / 2) < 5 * (1 / 4 / COUNT) ** 0.5


def pairs() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    n = np.arange(COUNT)
    one = uniform(0, "view", n, 0, 0)
    return {
        "the next counter": (one[:-1], one[1:]),
        "a batch later": (one[:-128], one[128:]),
        "another stream": (one, uniform(0, "views", n, 0, 0)),
        "another seed": (one, uniform(1, "view", n, 0, 0)),
        "another view": (one, uniform(0, "view", n, 1, 0)),
        "another part": (one, uniform(0, "view", n, 0, 1)),
        "counters exchanged": (one[2:], uniform(0, "view", 0, n, 0)[2:]),
        "one counter more": (uniform(0, "view", n), uniform(0, "view", n, 0)),
        "the order turned round": (one[: COUNT // 2], one[::-1][: COUNT // 2]),
    }


@pytest.mark.parametrize("name", pairs())
def test_independent(name: str) -> None:
    """No correlation of the numbers, nor of their distances from ½, and no number in common."""
    one, two = pairs()[name]
    limit = 5 / len(one) ** 0.5
    assert abs(np.corrcoef(one, two)[0, 1]) < limit
    assert abs(np.corrcoef(abs(one - 0.5), abs(two - 0.5))[0, 1]) < limit
    if name not in ("the next counter", "a batch later", "the order turned round"):  # those are one sequence
        assert not np.isin(one, two).any()


def test_no_number_comes_twice() -> None:
    n = np.arange(COUNT)
    everything = np.concatenate([uniform(seed, stream, n) for seed in (0, 1) for stream in ("sample", "crop")])
    assert len(np.unique(everything)) == len(everything)


def test_seeds_and_streams_are_not_glued_together() -> None:
    """(1, "2/x") and ("1/2", "x") would be one text, but a seed is a number and has no slash."""
    assert len({stream_seed(seed, stream) for seed in range(-20, 20) for stream in ("", "1", "a", "a/1")}) == 160
