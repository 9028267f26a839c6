"""Brand as it is where it has no compiled loops."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

import pytest

from brand.formats import compression, landing, record, records, stored
from brand.node.client import wants

USERS: list[ModuleType] = [compression, landing, record, records, stored, wants]
"""The modules that call the core."""


@contextmanager
def without_core() -> Iterator[None]:
    """These modules work as if there was no core."""
    with pytest.MonkeyPatch.context() as patch:
        for module in USERS:
            patch.setattr(module, "CORE", None)
        yield
