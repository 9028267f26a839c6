"""A child process that imports packages, so that one which crashes does not end `brand doctor`.

Standard input has a JSON list of module names. After each import the process writes one JSON line to standard output:
the error, or an empty text where there is none. What a package prints goes to standard error.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import warnings


def main() -> None:
    """Import what standard input names."""
    modules = json.load(sys.stdin)
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as out:
        os.dup2(2, 1)
        warnings.simplefilter("ignore")
        for module in modules:
            out.write(json.dumps(_error(module)) + "\n")
            out.flush()


def _error(module: str) -> str:
    """Why a module cannot be imported: the first line of the error; empty where it can."""
    try:
        importlib.import_module(module)
    except Exception as error:  # noqa: BLE001 - an import runs any code
        return f"{type(error).__name__}: {error}".splitlines()[0]
    return ""
