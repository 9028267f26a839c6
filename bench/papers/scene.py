"""Which numbers describe a simulation of data, nodes, storage and caches?

A scene is a TOML file with the fields of `Scene`, and optionally tables `[rules]`, `[published]` and `[grid]`. The
scenes of the paper "Clairvoyant Prefetching for Distributed Machine Learning I/O" (HDMLP) and of its author's thesis
ship with Brand (`scene_names`). Units are those of the thesis: MB and seconds; 1 GB of capacity is 1,024 MB.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from brand.errors import UsageError
from brand.orders.base.random import RandomStream, permutation

_BESIDE: Final = {"published", "grid"}
"""Tables of a file that are not part of the scene."""


@dataclass(frozen=True, slots=True)
class Rules:
    """Assumptions that the thesis does not state, but its figures need.

    With the defaults `in_turn` yields its tables.
    """

    readers_in_turn: bool = True
    """Whether storage has as many readers as nodes with a planned read at this time; otherwise always all nodes."""
    plan_ahead: bool = True
    """Whether a node plans reads for its whole staging buffer at once; otherwise the nodes take turns, one batch
    each.
    """
    undivided: bool = True
    """Whether every thread reads a local tier at the rate of all its threads together; otherwise they share the
    rate.
    """
    peers: bool = False
    """Whether policy `frequency` also reads samples from other nodes if it guesses that they already hold them."""
    to_the_brim: bool = True
    """Whether preloading, once memory overflows, fills each local tier entirely, all tiers at the same time;
    otherwise it loads no more than a node's partition, one tier after the other.
    """


@dataclass(frozen=True, slots=True)
class Scene:
    """The numbers of a simulation. Raises `UsageError` if they contradict each other."""

    samples: int
    """Samples of the data set."""
    mean_mb: float
    """Mean size of a sample in MB."""
    sd_mb: float
    """Standard deviation of the sizes in MB. Sizes are normal; a negative one becomes 0, which raises the mean."""
    epochs: int
    """Epochs of training."""
    nodes: int
    """Nodes, with one training process each."""
    batch: int
    """Samples of a global batch; a multiple of `nodes`."""
    train_mb_s: float
    """MB/s that one node trains."""
    decode_mb_s: float
    """MB/s that one thread decodes and writes to the staging buffer."""
    network_mb_s: float
    """MB/s that one node receives from other nodes."""
    client_mb_s: float
    """The most MB/s that one node reads from storage."""
    storage_mb_s: tuple[tuple[int, float], ...]
    """Pairs (readers, MB/s of all of them together), readers rising. Linear in between, constant outside."""
    threads: tuple[int, ...]
    """Threads of a node that fill the staging buffer, then those that fill each local tier, fastest tier first."""
    room_mb: tuple[float, ...]
    """Capacity in MB of the staging buffer, then of each local tier."""
    local_mb_s: tuple[float, ...]
    """MB/s at which all threads of the staging buffer and of each local tier together read it."""
    storage_ops_s: float = math.inf
    """Reads a second that storage does for all nodes together. Only the clock `fair` counts them."""
    seed: int = 0
    """Seed of sizes and draws."""
    rules: Rules = field(default_factory=Rules)
    """Assumptions of the clock `in_turn`."""

    def __post_init__(self) -> None:
        for name in ("samples", "epochs", "nodes", "batch"):
            if not _whole(value := getattr(self, name)) or value < 1:
                raise UsageError(f"{name} = {value!r}: give a whole number from 1 on")
        for name in ("mean_mb", "train_mb_s", "decode_mb_s", "network_mb_s", "client_mb_s", "storage_ops_s"):
            if not _number(value := getattr(self, name)) or not value > 0:
                raise UsageError(f"{name} = {value!r}: give a number above 0")
        if not _number(self.sd_mb) or not 0 <= self.sd_mb < math.inf or self.mean_mb == math.inf:
            raise UsageError(f"mean_mb = {self.mean_mb!r}, sd_mb = {self.sd_mb!r}: give finite sizes, sd_mb from 0 on")
        if not _whole(self.seed) or self.seed < 0:
            raise UsageError(f"seed = {self.seed!r}: give a whole number from 0 on")
        if self.batch % self.nodes:
            raise UsageError(f"a batch of {self.batch} for {self.nodes} nodes: give a multiple of {self.nodes}")
        if self.samples < self.batch:
            raise UsageError(f"{self.samples} samples are less than one batch of {self.batch}: give a smaller batch")
        self._check_tiers()
        readers = [row[0] for row in self.storage_mb_s]
        if not readers or readers != sorted(set(readers)) or not all(_whole(count) and count > 0 for count in readers):
            raise UsageError(
                f"storage_mb_s = {self.storage_mb_s}: give pairs [readers, MB/s], readers rising from 1 on"
            )
        if not all(_number(rate) and 0 < rate < math.inf for _, rate in self.storage_mb_s):
            raise UsageError(f"storage_mb_s = {self.storage_mb_s}: give rates above 0")

    def _check_tiers(self) -> None:
        lengths = {len(self.threads), len(self.room_mb), len(self.local_mb_s)}
        if len(lengths) > 1 or min(lengths) < 2:
            raise UsageError(
                f"{len(self.threads)} threads, {len(self.room_mb)} room_mb, {len(self.local_mb_s)} local_mb_s: give"
                " equally many of each, for the staging buffer and for one local tier or more (room 0: none)"
            )
        if not all(_whole(count) and count > 0 for count in self.threads):
            raise UsageError(f"threads = {self.threads}: give whole numbers from 1 on")
        if not all(_number(room) and 0 <= room < math.inf for room in self.room_mb):
            raise UsageError(f"room_mb = {self.room_mb}: give finite numbers from 0 on")
        if not all(_number(rate) and rate > 0 for rate in self.local_mb_s):
            raise UsageError(f"local_mb_s = {self.local_mb_s}: give numbers above 0")

    @property
    def tiers(self) -> int:
        """Local tiers of a node, without the staging buffer."""
        return len(self.room_mb) - 1

    @property
    def iterations(self) -> int:
        """Iterations of an epoch. The last, incomplete one is dropped."""
        return self.samples // self.batch

    def storage_rate(self, readers: int) -> float:
        """Return the MB/s that `readers` readers get from storage together."""
        counts, rates = zip(*self.storage_mb_s, strict=True)
        return float(np.interp(readers, counts, rates))

    def fetch_s(self, readers: int) -> float:
        """Return the seconds in which one of `readers` readers gets a MB from storage."""
        return 1 / min(self.client_mb_s, self.storage_rate(readers) / readers)

    def sizes(self) -> NDArray[np.float64]:
        """Return the MB of each sample, shape (samples,)."""
        drawn = np.random.Generator(np.random.Philox(self.seed)).normal(self.mean_mb, self.sd_mb, self.samples)
        return np.maximum(0.0, drawn)

    def draws(self) -> NDArray[Any]:
        """Return the samples that each node draws, integers of shape (epochs, iterations, nodes, batch / nodes).

        An epoch is a permutation of all samples, without those of the last, incomplete iteration.
        """
        shape = (self.iterations, self.nodes, self.batch // self.nodes)
        epochs = (permutation(self.samples, self.seed, RandomStream.ACCESS, epoch) for epoch in range(self.epochs))
        return np.stack([epoch[: math.prod(shape)].reshape(shape) for epoch in epochs])

    def scaled(self, share: float) -> Scene:
        """Return the scene with this fraction of its samples and of its local tiers, which shortens the simulation.

        The staging buffer keeps its size: the pace within an epoch depends on how many batches it holds.
        """
        if not 0 < share <= 1:
            raise UsageError(f"a scale of {share}: give a number above 0, at most 1")
        rooms = (self.room_mb[0], *(room * share for room in self.room_mb[1:]))
        return replace(self, samples=round(self.samples * share), room_mb=rooms)


@dataclass(frozen=True, slots=True)
class Grid:
    """A table of scenes that differ in capacity, with the published seconds."""

    disk_mb: tuple[float, ...]
    """Capacity of the second local tier of each row, in MB."""
    memory_mb: tuple[float, ...]
    """Capacity of the first local tier of each column, in MB."""
    scenes: tuple[tuple[Scene, ...], ...]
    """Scenes, [row][column]."""
    published: tuple[tuple[float, ...], ...]
    """Published seconds of policy `frequency`, [row][column]."""


def scene_names() -> list[str]:
    """Return the names of the scenes that ship with Brand, sorted."""
    return sorted(file.name.removesuffix(".toml") for file in _shipped().iterdir() if file.name.endswith(".toml"))


def load_scene(name_or_path: str | Path) -> Scene:
    """Load a shipped scene by its name, or the scene of a TOML file.

    Raises `UsageError` if it is unknown or invalid.
    """
    table = {key: value for key, value in _table(name_or_path).items() if key not in _BESIDE}
    rules = table.pop("rules", {})
    if not isinstance(rules, Mapping):
        raise UsageError(f"{name_or_path}: rules = {rules!r}: give a table [rules]")
    _check_keys(name_or_path, Rules, rules)
    if wrong := [key for key, value in rules.items() if not isinstance(value, bool)]:
        raise UsageError(f"{name_or_path}: rule {wrong[0]} = {rules[wrong[0]]!r}: give true or false")
    _check_keys(name_or_path, Scene, table)
    try:
        return Scene(**{key: _frozen(value) for key, value in table.items()}, rules=Rules(**rules))
    except UsageError as error:
        raise UsageError(f"{name_or_path}: {error}") from error
    except (TypeError, ValueError) as error:
        shape = "storage_mb_s is a list of pairs [readers, MB/s]; threads, room_mb and local_mb_s are lists of numbers"
        raise UsageError(f"{name_or_path}: {error}: {shape}, every other field is one number") from error


def load_published(name: str | Path) -> dict[str, float]:
    """Return the published seconds of a scene by policy; empty if nothing was published.

    Raises `UsageError` if the scene is unknown or invalid.
    """
    table = _table(name).get("published", {})
    if not isinstance(table, Mapping):
        raise UsageError(f"{name}: published = {table!r}: give a table [published]")
    for key, value in table.items():
        if not _number(value) or not 0 < value < math.inf:
            raise UsageError(f"{name}: published {key} = {value!r}: give seconds above 0")
    return {key: float(value) for key, value in table.items()}


def load_grid(name: str | Path) -> Grid:
    """Load the scenes of a file with a table `[grid]`. Raises `UsageError` if it has none or is invalid."""
    scene, table = load_scene(name), _table(name).get("grid", {})
    if set(table) != {"disk_mb", "memory_mb", "published"} or scene.tiers != 2:
        raise UsageError(f"{name}: no grid: give two local tiers, and disk_mb, memory_mb and published in [grid]")
    disks, memories = tuple(table["disk_mb"]), tuple(table["memory_mb"])
    rooms = [[(scene.room_mb[0], memory, disk) for memory in memories] for disk in disks]
    scenes = tuple(tuple(replace(scene, room_mb=room) for room in row) for row in rooms)
    return Grid(disks, memories, scenes, tuple(map(tuple, table["published"])))


def _shipped() -> Any:
    return Path(__file__).parent / "scenes"


def _table(name_or_path: str | Path) -> dict[str, Any]:
    """Return the content of the file of a scene."""
    shipped = str(name_or_path) in scene_names()
    file = _shipped() / f"{name_or_path}.toml" if shipped else Path(name_or_path)
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        names = ", ".join(scene_names())
        raise UsageError(f"{name_or_path}: no scene: give the path of a TOML file, or one of {names}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{name_or_path}: not TOML: {error}") from error


def _check_keys(name: str | Path, kind: Any, table: Mapping[str, Any]) -> None:
    """Raise `UsageError` if a key is unknown or missing."""
    known = {item.name: item.default is MISSING and item.default_factory is MISSING for item in fields(kind)}
    if unknown := sorted(set(table) - set(known)):
        raise UsageError(f"{name}: {unknown[0]} is unknown: give {', '.join(known)}")
    if missing := [key for key, needed in known.items() if needed and key not in table]:
        raise UsageError(f"{name}: {missing[0]} is missing: give it")


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and not math.isnan(value)
