"""`brand info` and `brand cat`: the facts of a data set, and one of its samples."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from brand.cli.dataset import DATA_SET
from brand.cli.output import chunk_run, echo, new_table, noticed_line, print_json, size
from brand.errors import SchemaError, UsageError, counted
from brand.formats.media import kind_of
from brand.formats.values import FieldList
from brand.printable import printable, printable_lines
from brand.storage.dataset.dataset import StoredDataSet
from brand.storage.dataset.summary import Summary, summarise

if TYPE_CHECKING:
    from rich.table import Table  # imported where it is used: it takes longer than all other verbs need to start

_BAR = 32
_CLASSES_SHOWN = 30
_NAMED = 5
_ELEMENTS_SHOWN = 5


@click.command()
@click.argument("dst", type=DATA_SET)
@click.option("--json", "as_json", is_flag=True, help="Print all facts as JSON.")
def info(dst: Path | str, as_json: bool) -> None:  # noqa: FBT001 - click passes options by name
    """Show the fields, sizes and classes of the data set DST.

    The command reads the index only.
    """
    summary = replace(summarise(StoredDataSet(dst)), path=str(dst))
    if as_json:
        print_json(summary.to_json())
        return
    from rich.console import Console

    console = Console(highlight=False, soft_wrap=True)
    console.print(_facts(summary))
    for fact in summary.noticed:
        echo(noticed_line(fact))
    sizes = [(f"{size(low)} - {size(2 * low)}", count) for low, count in summary.size_histogram.items()]
    console.print(_bars("sample sizes", sizes))
    for name, names in summary.field_classes.items():
        some = ", ".join(map(printable, names[:_NAMED])) + (", ..." if len(names) > _NAMED else "")
        echo(f"{name}: {counted(len(names), 'class', 'classes')} ({some})")
    if summary.class_counts is not None:
        classes = list(summary.class_counts.items())
        if summary.unlabelled:
            echo(f"{counted(summary.unlabelled, 'sample has', 'samples have')} no label (-1)")
        console.print(_bars(counted(len(classes), "class", "classes"), classes[:_CLASSES_SHOWN]))
        if len(classes) > _CLASSES_SHOWN:
            console.print(
                f"  and {counted(len(classes) - _CLASSES_SHOWN, 'more class', 'more classes')} (--json lists all)"
            )


def _facts(summary: Summary) -> Table:
    from rich.text import Text  # no markup: a name may look like it

    table = new_table()
    held = summary.samples if summary.collection is None else summary.collection["held"]
    mean = summary.raw_bytes / held
    chunk = size(summary.stored_bytes / summary.chunks)
    packed = f", {100 * summary.stored_bytes / max(1, summary.raw_bytes):.0f} % of the raw size"
    kept = "" if summary.compression == "none" else packed
    dictionary = f" with a dictionary of {size(summary.dictionary_bytes)}" if summary.dictionary_bytes else ""
    rows = {"data set": f"{summary.path}  (id {summary.id})"}
    if (share := summary.partition) is not None:
        held = f"{chunk_run(share['first_chunk'], share['last_chunk'])}, {counted(share['samples'], 'sample')}"
        rows["partition"] = f"{share['node']} of {share['nodes']}, counted from 0: {held}"
    if (told := summary.collection) is not None:
        deleted = f", {counted(told['deleted'], 'sample')} deleted" if told["deleted"] else ""
        columns = f", columns {', '.join(told['columns'])}" if told["columns"] else ""
        rows["version"] = f"{told['version']}, of {counted(told['segments'], 'segment')}{deleted}{columns}"
    rows |= {
        "samples": f"{summary.samples:,}, {size(mean)} on average, the largest {size(summary.largest_sample)}",
        "fields": ", ".join(f"{name}: {codec}" for name, codec in summary.schema.items()),
        "chunks": f"{summary.chunks:,} of {counted(summary.chunk_size, 'sample')}, {chunk} on average",
        "compression": f"{summary.compression}{dictionary}{kept}",
        "on disk": f"{size(summary.disk_bytes)}, chunks and index",
        "made from": f"{summary.source.get('kind', '?')}, shuffled with seed {summary.seed}",
    }
    if summary.decode:
        rows["decoded"] = ", ".join(f"{name}: {words.replace(',', ' ')}" for name, words in summary.decode.items())
    if summary.companions:
        rows["beside it"] = ", ".join(f"{name} ({size(count)})" for name, count in summary.companions.items())
    for name, value in rows.items():
        table.add_row(Text(name, "bold"), Text(printable(value)))
    return table


def _bars(title: str, counts: Iterable[tuple[str, int]]) -> Table:
    from rich.text import Text

    rows = list(counts)
    most = max((count for _, count in rows), default=1) or 1
    table = new_table(f"\n{title}")
    table.add_column(justify="right")
    table.add_column(justify="right")
    for name, count in rows:
        bar = "█" * round(_BAR * count / most) or ("▏" if count else "")
        table.add_row(Text(printable(name)), f"{count:,}", bar)
    return table


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
    if isinstance(value, FieldList):
        return [_plain(element) for element in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return value.tolist() if isinstance(value, np.ndarray) else value


def _describe(value: Any) -> str:
    if isinstance(value, FieldList) and value and isinstance(value[0], bytes | np.ndarray):
        more = [f"and {len(value) - _ELEMENTS_SHOWN:,} more"] if len(value) > _ELEMENTS_SHOWN else []
        return f"{len(value):,}: {'; '.join([*map(_describe, value[:_ELEMENTS_SHOWN]), *more])}"
    if isinstance(value, bytes):
        return f"{kind_of(value) or 'bytes'}, {len(value):,} bytes"
    if isinstance(value, np.ndarray):
        return f"array {value.dtype}, shape {value.shape}"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
