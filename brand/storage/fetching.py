"""How does this process get the index of a data set at a URL? Another process copies it to a folder of this machine.

The libraries that speak to stores start threads, and would make this process unfit to fork its DataLoader workers. So a
process of its own (`indexcopy`) speaks to the store, says where the copy is, and ends.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Final

from brand.errors import StorageError, unpack_error
from brand.pythonchild import child_command

LIMIT_S: Final = 3600.0
"""How long the copy of an index may take. Each request has a limit of its own, which is much shorter."""


def fetch_index(url: str) -> Path:
    """The folder of this machine that has manifest and index of the data set at `url`, copied where it is not there.

    The manifest is read anew each time, so a data set that was replaced is found. Raises `NotADataSetError` and other
    `FormatError`s, `UsageError`, `StorageError`.
    """
    command = child_command("brand.storage.indexcopy")
    try:
        done = subprocess.run(command, input=url.encode(), stdout=subprocess.PIPE, timeout=LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        raise StorageError(f"the index of {url} was not copied within {LIMIT_S:.0f} s") from None
    except OSError as error:
        raise StorageError(f"the index of {url} cannot be copied: no process can be started: {error}") from None
    try:
        answer = json.loads(done.stdout)
    except ValueError:
        raise StorageError(f"the process that copies the index of {url} ended; it may have said why") from None
    if "type" in answer:
        raise unpack_error(answer) or StorageError(f"the index of {url} cannot be copied: {answer}")
    return Path(answer["folder"])
