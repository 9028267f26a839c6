"""A child process that imports packages, so that a package that crashes does not end `brand doctor`.

Standard input has a JSON list of module names. After each import the process writes one JSON line to standard output:
the error, or an empty text if there is none. Output of a package is redirected to standard error.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import warnings


def main() -> None:
    """Import the modules that standard input lists."""
    modules = json.load(sys.stdin)
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as out:
        os.dup2(2, 1)
        warnings.simplefilter("ignore")
        for module in modules:
            out.write(json.dumps(_error(module)) + "\n")
            out.flush()


def _error(module: str) -> str:
    """Return why a module cannot be imported: the first line of the error; empty if it can."""
    try:
        importlib.import_module(module)
    except Exception as error:  # noqa: BLE001 - an import runs any code
        return f"{type(error).__name__}: {error}".splitlines()[0]
    return ""
