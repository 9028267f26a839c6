"""How do torch's random functions in a transform take their numbers from the seed of the sample?

While a transform runs, the functions in its thread (torchvision's transforms use no others) take their numbers from a
generator with that seed instead of the process's generator. All threads share the `random` module and numpy's global
generator, so these are not changed.

Most of torch's random functions accept a generator. The other functions get one when they call an operator that accepts
one. That costs ten times as much, so only these functions are intercepted at their operators.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

import torch
from torch.nn import functional, init
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

_SELF: Final = (
    *("uniform_", "normal_", "random_", "bernoulli_", "exponential_", "geometric_", "cauchy_", "log_normal_"),
    *("bernoulli", "multinomial"),
)
_DROPOUT: Final = ("dropout", "alpha_dropout", "feature_alpha_dropout")


def _functions(home: object, *names: str) -> list[Callable[..., Any]]:
    """Return the functions with these names that this version of torch has."""
    return [getattr(home, name) for name in names if hasattr(home, name)]


_TAKE_A_GENERATOR: Final = frozenset(
    [
        *_functions(torch, "rand", "randn", "randint", "randperm", "normal", "bernoulli", "multinomial", "poisson"),
        *_functions(torch.Tensor, *_SELF),
    ]
)
_TAKE_NONE: Final = frozenset(
    [
        *_functions(torch, "rand_like", "randn_like", "randint_like", "binomial", "_standard_gamma"),
        *_functions(torch, "_sample_dirichlet", "rrelu", "rrelu_", "native_dropout", "feature_dropout", *_DROPOUT),
        *_functions(torch, *(f"{name}_" for name in (*_DROPOUT, "feature_dropout"))),
        *_functions(functional, "dropout1d", "dropout2d", "dropout3d", "rrelu", "gumbel_softmax", *_DROPOUT),
        *_functions(init, "uniform_", "normal_", "kaiming_uniform_"),
    ]
)


class SampleSeeds(TorchFunctionMode):
    """While it is entered, torch's random functions in this thread use `generator`."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = torch.Generator()
        self._operators = _Operators(self.generator)

    def seed(self, seed: int) -> None:
        """Seed the generator. `seed` has 63 bits."""
        self.generator.manual_seed(seed)

    def __repr__(self) -> str:
        return f"SampleSeeds(seed {self.generator.initial_seed()})"

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Call `func`, with the generator if the function is random and the caller gave none."""
        kwargs = kwargs or {}
        if func in _TAKE_A_GENERATOR and kwargs.get("generator") is None:
            kwargs = {**kwargs, "generator": self.generator}
        elif func in _TAKE_NONE:
            with self._operators:
                return func(*args, **kwargs)
        return func(*args, **kwargs)


class _Operators(TorchDispatchMode):
    """While it is entered, torch's random operators use a generator."""

    def __init__(self, generator: torch.Generator) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._generator = generator

    def __torch_dispatch__(
        self, func: Any, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call `func`. If it is random, call the operator of its name that accepts a generator."""
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded in func.tags and kwargs.get("generator") is None:
            return func.overloadpacket(*args, **{**kwargs, "generator": self._generator})
        return func(*args, **kwargs)
