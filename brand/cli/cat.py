"""`brand cat DST INDEX [--field F]`."""

from __future__ import annotations

import base64
import json
import sys
from pathlib import Path
from typing import Any

import click
import numpy as np

from brand.cli.dataset import DATA_SET
from brand.cli.output import echo, print_json, size
from brand.errors import SchemaError, UsageError
from brand.formats.media import kind_of
from brand.printable import printable_lines
from brand.storage.dataset.dataset import StoredDataSet


@click.command()
@click.argument("dst", type=DATA_SET)
@click.argument("index", type=click.IntRange(0))
@click.option("--field", help="Print this field alone, as it is: `--field image > image.png`.")
@click.option("--json", "as_json", is_flag=True, help="Print the sample as JSON, bytes in base64.")
def cat(dst: Path | str, index: int, field: str | None, as_json: bool) -> None:  # noqa: FBT001 - click passes options by name
    """Print sample INDEX of the data set DST."""
    data_set = StoredDataSet(dst)
    if index >= len(data_set):
        raise UsageError(f"sample {index} is out of range: {dst} has samples 0 to {len(data_set) - 1:,}")
    values = {"index": index, "key": str(index)} | data_set.sample(index)
    if field is not None and field not in values:
        raise SchemaError(f"no field {field!r}; this data set has {', '.join(values)}")
    if as_json:
        print_json({name: _plain(value) for name, value in values.items() if field in (None, name)})
    elif field is not None:
        _print_value(field, values[field])
    else:
        for name, value in values.items():
            echo(f"{name:>12}  {_describe(value)}")


def _print_value(field: str, value: Any) -> None:
    if not isinstance(value, bytes):
        text = value if isinstance(value, str) else json.dumps(_plain(value), ensure_ascii=False)
        click.echo(printable_lines(text) if sys.stdout.isatty() else text, color=True)  # else click cuts escapes out
    elif sys.stdout.isatty():
        raise UsageError(f"field {field!r} is {size(len(value))} of binary data, not for a terminal: add `> FILE`")
    else:
        sys.stdout.buffer.write(value)


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return value.tolist() if isinstance(value, np.ndarray) else value


def _describe(value: Any) -> str:
    if isinstance(value, bytes):
        return f"{kind_of(value) or 'bytes'}, {len(value):,} bytes"
    if isinstance(value, np.ndarray):
        return f"array {value.dtype}, shape {value.shape}"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
