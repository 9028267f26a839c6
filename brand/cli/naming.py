"""Parse the options that name samples, for the commands that delete."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from brand.collect import NamedSamples
from brand.errors import UsageError


def naming_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that name samples."""
    for add in reversed(
        (
            click.option("--key", "keys", multiple=True, help="A key; with / at its end, all keys that begin with it."),
            click.option("--key-file", type=click.Path(path_type=Path), help="A file of keys, one a line, in UTF-8."),
            click.option("--index", "indices", type=click.IntRange(0), multiple=True, help="An index."),
        )
    ):
        command = add(command)
    return command


def wanted_of(keys: tuple[str, ...], key_file: Path | None, indices: tuple[int, ...]) -> NamedSamples:
    """Return the samples that the options name. Raises `UsageError`."""
    lines: list[str] = []
    if key_file is not None:
        try:
            lines = [line for line in key_file.read_text(encoding="utf-8").splitlines() if line]
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"{key_file}: the keys cannot be read: {error}") from error
    if not (keys or lines or indices):
        raise UsageError("no sample is named: give --key, --key-file or --index")
    return NamedSamples((*keys, *lines), indices)
