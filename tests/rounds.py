"""How often is a test of chance repeated, with which random numbers, and how does a failed round come back?

    @rounds(10)
    def test_a_server_is_killed(chance: Chance) -> None:
        moment_s = chance.rng.uniform(0, 1)

The seed and its number fix the random numbers of a round. `make test` runs as many rounds as the test says (here 10)
with seed 0, so a red round stays red. `make explore` runs a hundred of each test with a fresh seed, and prints it;
`pytest TEST --rounds 100 --seed 7 -k 7-42` runs round 42 of seed 7 again. `examples` does the same for Hypothesis:
`make test` runs 30 % of the number that a test states, always the same examples. `make explore` runs twenty times that
number, with other examples each time.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

FIXED_SEED = 0
_STATED = 100
"""Examples that a test states if it does not use `examples`: those of Hypothesis itself."""
_USUAL, _MORE = 30, 20 * _STATED
_LEAST = 5
"""Fewer examples than these are not cut any further."""
_SLOW_IS_FINE = [HealthCheck.too_slow, HealthCheck.data_too_large]


@dataclass(frozen=True)
class Chance:
    """The random numbers of one round."""

    seed: int
    number: int

    @cached_property
    def rng(self) -> random.Random:
        """One generator for the whole round."""
        return random.Random(str(self))

    def seeds(self, count: int) -> range:
        """Seeds for so many small walks, which no other round has; from 0 on in the usual rounds."""
        first = (self.seed << 32) + count * self.number
        return range(first, first + count)

    def __str__(self) -> str:
        return f"{self.seed}-{self.number}"


def rounds(usual: int) -> pytest.MarkDecorator:
    """Repeat a test that takes `chance: Chance`: `usual` rounds, or as many as `--rounds` says."""
    return pytest.mark.rounds(usual)


def examples(usual: int, **more: Any) -> settings:
    """Settings of a Hypothesis test: `usual` examples, scaled as the profile says."""
    scaled = usual * settings().max_examples // _STATED
    return settings(max_examples=max(scaled, min(usual, _LEAST)), **more)


def register_profiles() -> None:
    """`brand`, which always tries the same examples, and `explore`, which tries more, and others in each run."""
    settings.register_profile(
        "brand", max_examples=_USUAL, deadline=None, derandomize=True, suppress_health_check=_SLOW_IS_FINE
    )
    settings.register_profile(
        "explore",
        max_examples=_MORE,
        deadline=None,
        derandomize=False,
        print_blob=True,
        suppress_health_check=_SLOW_IS_FINE,
    )
    settings.load_profile("brand")


def add_options(parser: pytest.Parser) -> None:
    """`--rounds` and `--seed`."""
    group = parser.getgroup("rounds of chance")
    group.addoption("--rounds", type=int, help="rounds of each test of chance, instead of the few that it says")
    group.addoption("--seed", type=int, default=FIXED_SEED, help="seed of these rounds (default: %(default)s)")


def deal(metafunc: pytest.Metafunc) -> None:
    """Repeat a test that is marked with `rounds`."""
    marker = metafunc.definition.get_closest_marker("rounds")
    if marker is not None:
        asked, seed = metafunc.config.getoption("--rounds"), metafunc.config.getoption("--seed")
        count = marker.args[0] if asked is None else asked
        metafunc.parametrize("chance", [Chance(seed, number) for number in range(count)], ids=str)


def how_to_repeat(config: pytest.Config) -> str | None:
    """Which rounds this run has, where they are not the usual ones."""
    count, seed = config.getoption("--rounds"), config.getoption("--seed")
    if count is None and seed == FIXED_SEED:
        return None
    return (
        f"rounds of chance: {'usual' if count is None else count} of each test, seed {seed}: `make explore SEED={seed}`"
    )


def figures(reports: Sequence[pytest.TestReport]) -> list[str]:
    """A line for each test of chance: how many rounds were right, and how long all of them took together."""
    tests = dict.fromkeys(_test_of(report) for report in reports)
    return [_figure(test, [report for report in reports if _test_of(report) == test]) for test in tests]


def _figure(test: str, reports: Sequence[pytest.TestReport]) -> str:
    found = {report.nodeid for report in reports if report.when == "call"}
    wrong = {report.nodeid for report in reports if report.failed}
    seconds = sum(report.duration for report in reports)
    return f"{len(found - wrong):5} of {len(found | wrong)} rounds right in {seconds:6.0f} s: {test}"


def _test_of(report: pytest.TestReport) -> str:
    return report.nodeid.partition("[")[0]
