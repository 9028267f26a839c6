"""How does Brand start a Python process of its own? It can import what this process can, as with multiprocessing."""

from __future__ import annotations

import json
import sys
from typing import Final

_CODE: Final = """
import importlib, json, sys
sys.path[:] = json.loads(sys.argv[1])
importlib.import_module(sys.argv[2]).main()
"""


def child_command(module: str) -> list[str]:
    """The command that runs `main()` of a module."""
    return [sys.executable, "-P", "-c", _CODE, json.dumps(sys.path), module]
