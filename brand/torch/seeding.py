"""How are random transforms the same in every run, though threads run them in any order?

Each sample has a seed of its own, from the seed of the run, the epoch and the index. While a transform runs, torch's
random functions of this thread (torchvision's transforms use no others) take their numbers from a generator with that
seed instead of the process's one. The `random` module and numpy's global generator are shared by all threads and left
alone.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterable
from typing import Any, Final

import torch
from torch.overrides import TorchFunctionMode

_RANDOM: Final[frozenset[Callable[..., Any]]] = frozenset(
    function
    for name in (
        *("rand", "randn", "randint", "randperm", "normal", "bernoulli", "multinomial", "poisson"),
        *("Tensor.uniform_", "Tensor.normal_", "Tensor.random_", "Tensor.bernoulli_", "Tensor.exponential_"),
        *("Tensor.geometric_", "Tensor.cauchy_", "Tensor.log_normal_", "Tensor.bernoulli", "Tensor.multinomial"),
    )
    if (function := getattr(torch.Tensor, name[7:], None) if name.startswith("Tensor.") else getattr(torch, name, None))
)


class SampleSeeds(TorchFunctionMode):
    """While it is entered, torch's random functions of this thread draw from `generator`."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = torch.Generator()

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Call `func`, with the generator where it is random and none was given."""
        kwargs = kwargs or {}
        if func in _RANDOM and kwargs.get("generator") is None:
            kwargs = {**kwargs, "generator": self.generator}
        return func(*args, **kwargs)


def seed_of(run: int, epoch: int, index: int, turn: int) -> int:
    """The seed of one sample in one epoch; `turn` tells apart where it comes more than once."""
    facts = struct.pack("<QQQQ", run & (1 << 64) - 1, epoch, index, turn)
    return int.from_bytes(hashlib.blake2s(facts, digest_size=8).digest()) >> 1
