"""How does a command draw a figure? With matplotlib, which is an extra."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any, Final

from brand.errors import MissingExtraError, UsageError
from brand.formats.publish import storage_errors

_ENDINGS: Final = (".png", ".svg", ".pdf")


def empty_figure(plot: Path) -> Any:
    """Return an empty figure, made before the work begins, so that a missing package or folder is an error at once.

    Raises `UsageError`, `MissingExtraError`.
    """
    if plot.suffix.lower() not in _ENDINGS:
        raise UsageError(f"{plot}: the name of a drawing ends in {', '.join(_ENDINGS)}")
    if not plot.absolute().parent.is_dir():
        raise UsageError(f"{plot}: there is no folder {plot.parent}")
    try:
        return importlib.import_module("matplotlib.figure").Figure(figsize=(8, 5), layout="constrained")
    except ImportError as error:
        raise MissingExtraError("--plot needs the package matplotlib: pip install 'brand-data[tools]'") from error


def save_figure(figure: Any, plot: Path) -> None:
    """Write the figure. Raises `StorageError`."""
    with storage_errors(plot, "cannot write"):
        figure.savefig(plot)
