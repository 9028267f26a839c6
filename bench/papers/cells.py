"""How many seconds does each policy take in a scene, next to those that a paper printed?

The sizes of samples are random, and those of the papers are not known. Therefore all seconds of a scene are multiplied
by the factor that makes its lower bound (policy `perfect`) equal to the published one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.papers.clock import fair, in_turn
from bench.papers.policies import POLICIES
from bench.papers.scene import load_published, load_scene
from brand.errors import UsageError


@dataclass(frozen=True, slots=True)
class Cell:
    """The seconds of one policy in one scene."""

    policy: str
    in_turn_s: float | None
    """Seconds by the clock of the papers; None if the policy cannot serve the scene."""
    fair_s: float | None
    """Seconds if nodes share the bandwidth of storage; None if the policy cannot serve the scene."""
    published_s: float | None
    """Published seconds; None if the paper prints none."""
    reason: str = ""
    """The reason why the policy cannot serve the scene."""

    @property
    def deviation(self) -> float | None:
        """The difference of `in_turn_s` from the published seconds, in % of the latter."""
        if self.in_turn_s is None or self.published_s is None:
            return None
        return 100 * (self.in_turn_s / self.published_s - 1)


def cells(name: str | Path, policies: Iterable[str] = tuple(POLICIES), scale: float = 1.0) -> Iterator[Cell]:
    """Simulate the cells of a scene, a shipped one or a TOML file, and yield each as soon as it is simulated.

    `scale`: the fraction of the samples and of the local capacity that is simulated (`Scene.scaled`). Raises
    `UsageError` if the scene or a policy is unknown or invalid.
    """
    wanted = list(policies)
    if unknown := [policy for policy in wanted if policy not in POLICIES]:
        raise UsageError(f"policy {unknown[0]!r}: give {', '.join(POLICIES)}")
    scene, published = load_scene(name).scaled(scale), load_published(name)
    draws, factor = scene.draws(), 1.0
    if "perfect" in published:
        bound = POLICIES["perfect"](scene, draws)
        factor = published["perfect"] / float(in_turn(scene, bound, draws)[-1])
    for policy in wanted:
        theirs = published.get(policy)
        try:
            demand = POLICIES[policy](scene, draws)
        except UsageError as error:
            yield Cell(policy, None, None, theirs, str(error))
            continue
        ours, shared = (factor * float(clock(scene, demand, draws)[-1]) for clock in (in_turn, fair))
        yield Cell(policy, ours, shared, theirs)
