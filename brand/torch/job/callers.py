"""Which objects call? Frameworks say nothing to a sampler, so it looks at the methods among its callers.

Only the locals of methods are asked for. Python before 3.13 keeps what they name until the caller ends: in a training
function of a user, the last batch and its loss, for a whole epoch.
"""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Iterator
from types import FrameType
from typing import Any


def methods() -> Iterator[tuple[Any, FrameType]]:
    """Yield the object and the frame of each method among the callers, the nearest first."""
    for frame, _ in traceback.walk_stack(inspect.currentframe()):
        if frame.f_code.co_argcount and frame.f_code.co_varnames[0] == "self":
            yield frame.f_locals.get("self"), frame


def caller(method: str) -> Any:
    """Return the object whose `method` is among the callers, the nearest one; None if there is none."""
    for frame, _ in traceback.walk_stack(inspect.currentframe()):
        if frame.f_code.co_name == method:
            return frame.f_locals.get("self")
    return None
