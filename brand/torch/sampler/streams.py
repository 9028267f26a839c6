"""Does a framework resume an IterableDataset around Brand's loader by skipping what a new iteration yields?

A stream without a state begins with epoch 0 in a new process. To resume, frameworks take as many batches of that
iteration as were trained, and drop them; Lightning trains its batches. The samples are those of another epoch, or come
twice. Frameworks tell a stream nothing, so this module inspects the callers. No framework is imported here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from brand.errors import UsageError
from brand.torch.job.callers import methods
from brand.torch.sampler.lightning_epochs import resumes_inside

_CURE = (
    "Give the IterableDataset the methods state_dict and load_state_dict of its BrandLoader, and a StatefulDataLoader "
    "around it; or train from the BrandLoader without an IterableDataset (Accelerate: "
    "brand.frameworks.accelerate.prepare) (docs/guides/more-frameworks.md)"
)


def refuse_skipped_stream() -> None:
    """Raise `UsageError` if a caller resumes a stream by skipping, and the calling sampler begins without a state."""
    stream = False
    for asking, frame in methods():
        kinds = {kind.__name__ for kind in type(asking).__mro__}
        stream |= "IterableDataset" in kinds
        who = _skips(kinds, frame.f_code.co_name, frame.f_locals)
        if who or (stream and "_FitLoop" in kinds and resumes_inside(asking)):
            raise UsageError(
                f"{who or 'Lightning'} resumes an IterableDataset, which has no state: its BrandSampler would begin "
                f"with a whole epoch again, and train other samples than those that are left. {_CURE}"
            )
        if "_EvaluationLoop" in kinds:
            return


def _skips(kinds: set[str], name: str, variables: Mapping[str, Any]) -> str:
    """Return the framework whose method skips in this frame; empty if none does."""
    if kinds & {"_StatefulSingleProcessDataLoaderIter", "_StatefulMultiProcessingDataLoaderIter"}:
        restored = variables.get("next_iter_state") if name == "__init__" else None
        return "a StatefulDataLoader" if restored is not None else ""
    if "IterableWrapper" in kinds and name == "reset":
        return "torchdata.nodes" if variables.get("initial_state") is not None else ""
    if kinds & {"DataLoaderShard", "DataLoaderDispatcher"}:
        return "Accelerate" if getattr(variables["self"], "skip_batches", 0) else ""
    return ""


def ended_inside() -> bool:
    """Whether torchdata loads the state of a stream whose iteration has ended, and has not noticed that yet.

    Its iteration is then to be empty, as that of a sampler is: the loop is still in the epoch before.
    """
    for asking, frame in methods():
        if type(asking).__name__ == "_StatefulSingleProcessDataLoaderIter":
            state = frame.f_locals.get("state_dict") or {}
            return bool(state.get("_num_yielded")) and not state.get("_iterator_finished")
    return False
