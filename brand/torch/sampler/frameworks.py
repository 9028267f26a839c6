"""How do frameworks use the batches of a sampler? They divide them among the ranks, or skip some to resume.

Accelerate (and with it the Hugging Face Trainer) wraps the batch sampler of a loader that it prepares: each process
iterates over all batches and takes its own. A `BrandSampler` behind such a loader must therefore yield the positions of
all ranks. While a prepared loader iterates, Accelerate names it (`GradientState.active_dataloader`), so a sampler can
inspect the layers between that loader and itself. A PyTorch loader says nothing about itself to its sampler, so
`asking_loader` inspects the callers of a sampler. It finds three facts: a `StatefulDataLoader` skips batches because
its batch sampler has no state, the loader leaves out a last batch that is short, or its workers deliver batches in
another order. No framework is imported here, so a framework that is not in use has no effect.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from itertools import islice
from typing import Any

from brand.errors import UsageError
from brand.torch.job.callers import caller


@dataclass(frozen=True, slots=True)
class Wrapping:
    """The effect of the layers between a sampler and the loader of Accelerate that iterates over it."""

    processes: int
    """Number of processes among which the batches are divided; 1 if each process gets all positions of the sampler."""
    skipped: int
    """Number of batches that are skipped at the beginning."""
    restored: bool
    """Whether the loader is about to resume from its own state, by skipping batches."""
    ours: bool
    """Whether `brand.frameworks` has prepared the loader, so that Accelerate divides nothing."""


def accelerate_processes() -> int:
    """Return among how many processes Accelerate divides batches; 1 if Accelerate is not in use."""
    state = _accelerate()
    return 1 if state is None else int(state.PartialState().num_processes)


def _accelerate() -> Any:
    """Return Accelerate's module of states; None if it is not in use."""
    state = sys.modules.get("accelerate.state")
    return state if state is not None and state.is_initialized() else None


def wrapping_of(sampler: object) -> Wrapping | None:
    """Return how the loader of Accelerate that iterates just now wraps a sampler; None if it does not."""
    state = _accelerate()
    loader = None if state is None else state.GradientState().active_dataloader
    if loader is None:
        return None
    processes, skipped, layer = 1, 0, _first_layer(loader)
    while layer is not sampler:
        if layer is None:
            return None
        processes *= getattr(layer, "num_processes", 1)
        skipped += getattr(layer, "skip_batches", 0)
        inner = getattr(layer, "batch_sampler", None) or getattr(layer, "sampler", None)
        layer = None if inner is layer else inner
    if type(loader).__name__ == "DataLoaderDispatcher":  # the first process reads for all of them
        processes = accelerate_processes()
    base = getattr(loader, "base_dataloader", None)
    restored = getattr(base, "next_iter_state", None) is not None
    return Wrapping(processes, skipped, restored, ours=type(loader).__module__.startswith("brand."))


def _first_layer(loader: Any) -> Any:
    """Return the batch sampler of a loader; some loaders store it as `sampler`."""
    sampler, batch_sampler = getattr(loader, "sampler", None), getattr(loader, "batch_sampler", None)
    return sampler if hasattr(sampler, "batch_sampler") else batch_sampler


@dataclass(frozen=True, slots=True)
class AskingLoader:
    """The iteration of a PyTorch loader that takes samples from a sampler."""

    skipped: int = 0
    """Number of batches that a `StatefulDataLoader` skips to resume."""
    dropped: int = 0
    """Samples of a batch, if a last batch with fewer samples is left out; otherwise 0."""
    reorders: bool = False
    """Whether worker processes may deliver batches in another order (`in_order=False`)."""
    stateful: bool = False
    """Whether the loader is a `StatefulDataLoader`."""
    stateless: bool = False
    """Whether it is one that saves no state of its sampler, because its batch sampler has none."""


def asking_loader() -> AskingLoader:
    """Return the loader that asks for an index now. If none does, no field is set."""
    asking = caller("_next_index")
    if asking is None:
        return AskingLoader()
    batches = asking._index_sampler
    drops = getattr(batches, "drop_last", False) and isinstance(getattr(batches, "batch_size", None), int)
    stateful = hasattr(asking, "state_dict")
    return AskingLoader(
        skipped=asking._sampler_iter_yielded if isinstance(asking._sampler_iter, islice) else 0,
        dropped=batches.batch_size if drops else 0,
        reorders=asking._num_workers > 0 and not getattr(asking, "_in_order", True),
        stateful=stateful,
        stateless=stateful and not any(hasattr(each, "state_dict") for each in (batches, asking._sampler_iter)),
    )


def refuse_reordering(loader: AskingLoader) -> None:
    """Raise `UsageError` if the loader saves states, and its workers deliver batches in another order."""
    if loader.reorders and loader.stateful:
        raise UsageError(
            "with in_order=False, worker processes deliver batches in any order, and the states of a "
            "StatefulDataLoader count them in the order of the sampler: leave out in_order=False. For whole epochs, a "
            "DataLoader may have it"
        )


def refuse_begun_stateful(cure: str) -> None:
    """Raise `UsageError` if Accelerate has prepared a `StatefulDataLoader` whose workers begin before its iteration.

    They begin when Accelerate asks for their first state, so no loader of Accelerate iterates at that time.
    """
    loader = caller("_get_iterator")
    if type(getattr(loader, "batch_sampler", None)).__name__ == "BatchSamplerShard":
        raise UsageError(
            "worker processes of a StatefulDataLoader begin when Accelerate prepares it (use_stateful_dataloader=True),"
            f" before it says which batches they share. {cure}"
        )


def torchdata_discards() -> bool:
    """Return whether a `StatefulDataLoader` restores an iteration now that it will discard.

    It does so if its state was taken after its loop had ended. It then begins another iteration, without a state.
    """
    state = getattr(caller("_get_iterator"), "next_iter_state", None)
    return bool(state and state.get("_iterator_finished"))


def nodes_epoch() -> int | None:
    """Return the epoch of the `SamplerWrapper` of torchdata.nodes that loads the calling sampler's state; or None.

    After the iteration that begins with this state, it sets the epoch that follows this one.
    """
    if "torchdata.nodes" not in sys.modules:
        return None
    wrapper = caller("reset")
    return wrapper.epoch if type(wrapper).__name__ == "SamplerWrapper" else None


def unless_in_trainer(advice: str) -> str:
    """Return advice for Accelerate; if the training loop of a Hugging Face Trainer is among the callers, its own."""
    if caller("_inner_training_loop") is None:
        return advice
    return (
        "With the Hugging Face Trainer, use brand.frameworks.transformers.BrandTrainerMixin, which makes the loader "
        "and continues from checkpoints"
    )
