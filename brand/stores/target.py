"""How are the finished files of a data set written to a store? Each becomes an object, by one PUT.

Objects appear whole or not at all, and a repeated PUT writes the same bytes, so files may be published again. Two
objects are written *create-only*, so that two writers never mix: the claim, at the start, and the manifest, at the end.
The libraries do not repeat a create-only request that breaks, because the store may have executed it. `create` repeats
it, and then compares the stored object with its own.
"""

from __future__ import annotations

import errno
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from brand.errors import BrandError, TargetExistsError
from brand.reprs import Reprs
from brand.stores.store import Store

_PAUSES_S: Final = (0.1, 0.5, 2.0, 5.0)
"""Pauses between tries of a create-only request."""
_HOPELESS: Final = (errno.EACCES, errno.ENOENT, errno.ENODEV)
"""Errors that another try does not repair: no permission, no bucket."""


class StoreTarget(Reprs, shows="_store"):
    """The `Target` of `brand.formats.publish` in a store. All methods raise OSError, as those of `Store` do."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def publish(self, temporary: Path, name: str) -> None:
        self._store.write(name, temporary, new=False)
        temporary.unlink()

    def finish(self, name: str, data: bytes) -> None:
        """See `Target`. If another conversion has written exactly the same result, that is not an error."""
        if not self.create(name, data, lambda: self._holds(name, data)):
            raise TargetExistsError(
                f"{self._store.url}: another conversion or copy has finished there meanwhile. Choose another target"
            )

    def create(self, name: str, data: bytes, is_right: Callable[[], bool]) -> bool:
        """Write an object that must not exist yet. Return False if it exists, and `is_right` returns False for it."""
        for pause_s in (*_PAUSES_S, None):
            try:
                self._store.write(name, data, new=True)
            except FileExistsError:
                return is_right()  # the object may exist because the answer to an earlier try was lost
            except BrandError:
                raise
            except OSError as error:
                if pause_s is None or error.errno in _HOPELESS:
                    raise
                # Random, so that several writers do not retry at the same moment.
                time.sleep(pause_s * random.uniform(0.5, 1.5))
            else:
                return True
        raise AssertionError("the last try returns or raises")

    def _holds(self, name: str, data: bytes) -> bool:
        try:
            return self._store.read(name, len(data)) == data
        except OSError as error:
            if error.errno == errno.EFBIG:
                return False
            raise
