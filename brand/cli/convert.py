"""`brand convert FORMAT SRC DST` and `brand seal DST`: convert folders of files, and data of other tools."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import click

from brand.chunker import Options, Report, TokenOptions, convert_audio, convert_from, convert_images, convert_tokens
from brand.chunker.distributed import TaskReport, plan_audio, plan_images
from brand.chunker.distributed import seal as seal_data_set
from brand.chunker.importers.fields import FieldMapping, fields_told
from brand.chunker.importers.tokens import DTYPES
from brand.chunker.plan.report import OnProgress
from brand.chunker.sources.texttable import QUOTES, Dialect
from brand.cli.dataset import FOLDER, PLUGIN, options
from brand.cli.output import Meter, duration, echo, meter, noticed_line, print_json, size
from brand.cli.several import convert_together, one_machine, print_task, several_machines
from brand.errors import MissingChunksError, UsageError, counted
from brand.formats.header import CODECS
from brand.printable import printable
from brand.storage.dataset.dataset import StoredDataSet
from brand.storage.io.location import check_single

_UNITS: Final = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30}
_SHOWN: Final = 10
_EVERYWHERE: Final = (
    "DST is a folder, or a URL as s3://bucket/name. A conversion that was stopped goes on with the same command."
)


Run = Callable[..., Report]
"""Converts data of another tool: format, source, target and options, and the keywords of `convert_from`."""

_JSON: Final = click.option("--json", "as_json", is_flag=True, help="Print the report as JSON, and no progress.")


class Bytes(click.ParamType[int]):
    """A number of bytes: `4MiB`, `10MB`, `65536`."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Parse a number of bytes. The error lists the allowed forms."""
        match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmg]i?)?b?", str(value).strip().lower())
        if match is None:
            self.fail(f"{value!r} is no size; write for example 4MiB, 10MB or 65536", param, ctx)
        return round(float(match[1]) * _UNITS[match[2] or ""])


_always: Final = options(
    click.argument("src", type=click.Path()),
    click.argument("dst", type=click.Path()),
    click.option(
        "-j", "--jobs", type=click.IntRange(1), help="Processes (default: one a core). The result is the same for any."
    ),
    click.option("--seed", default=0, show_default=True, help="Seed of the shuffle."),
    click.option(
        "--chunk-size", type=click.IntRange(1), help="Samples a chunk (default: 64, or as many as make 4 to 256 MiB)."
    ),
    click.option("--chunk-bytes", type=Bytes(), help="Target for the mean chunk instead, e.g. 8MiB."),
    click.option("--compression", type=click.Choice(["auto", "zstd", "none"]), default="auto", show_default=True),
    PLUGIN,
)
_split: Final = click.option(
    "--split", metavar="NAME", help="The split or configuration to convert, if SRC has several; `all` takes all files."
)


def _on_error(what: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    return click.option(
        "--on-error",
        type=click.Choice(["fail", "skip"]),
        default="fail",
        show_default=True,
        help=f"Stop at a {what} that cannot be used, or leave it out and list it in skipped.tsv.",
    )


def _shown_by(show: Meter) -> OnProgress:
    return lambda p: show(p.stage, p.samples, p.total, p.bytes, p.total_bytes)


def _run(convert: Callable[..., Report | TaskReport], given: dict[str, Any], noun: str, *, as_json: bool) -> None:
    """Call `convert` with the options of `given`, and print the report.

    It gets `Options`, `on_progress`, and those of `given` that `Options` does not have. `noun` names one item of the
    source in the report.
    """
    same = {name: given.pop(name) for name in ("seed", "chunk_size", "chunk_bytes", "compression", "jobs")}
    same |= {name: given.pop(name) for name in ("split", "validate", "follow_links", "dry_run") if name in given}
    labels, skip_errors = not given.pop("no_labels", False), given.pop("on_error") == "skip"
    same |= {"leaf_classes": given.pop("leaf_classes", False), "natural_order": given.pop("order", "") == "natural"}
    classes = given_classes(given.pop("classes", None), given.pop("classes_of", None))
    chosen = Options(**same, labels=labels, skip_errors=skip_errors, classes=classes)
    with meter(quiet=as_json) as show:
        report = convert(chosen, on_progress=_shown_by(show), **given)
    if as_json:
        print_json(report.to_json())
    elif isinstance(report, TaskReport):
        print_task(report)
    else:
        print_report(report, noun)


_CLASSES: Final = options(
    click.option(
        "--classes", type=click.Path(), help="File with the names of the classes, one a line, in label order."
    ),
    click.option("--classes-of", metavar="SET", help="Give the classes the labels that they have in this data set."),
)


def given_classes(file: str | None, data_set: str | None) -> tuple[str, ...] | None:
    """Return the classes that a file or a data set names; None for neither. Raises `UsageError`."""
    if file is not None and data_set is not None:
        raise UsageError("--classes and --classes-of both say the order of the classes: give one of them")
    if file is not None:
        try:
            text = Path(file).read_text("utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            why = getattr(error, "strerror", None) or "it is not UTF-8"
            raise UsageError(f"--classes {printable(file)}: {why}; it has one name a line") from None
        return tuple(line.strip() for line in text.splitlines() if line.strip())
    if data_set is None:
        return None
    classes = StoredDataSet(data_set).classes
    if classes is None:
        raise UsageError(f"--classes-of {printable(data_set)}: the labels of that data set have no names")
    return tuple(classes)


def folder_verb(command: Callable[..., Report | TaskReport]) -> Callable[..., None]:
    """Add the options of a conversion of a folder of files. The command receives them as one `Options`."""

    @_always
    @_split
    @_on_error("file")
    @click.option(
        "--validate/--no-validate",
        default=None,
        help="Decode every file beforehand (default: with --on-error skip, as only decoding finds every bad file).",
    )
    @click.option("--no-labels", is_flag=True, help="Take all files, in any folder, without classes.")
    @_CLASSES
    @click.option(
        "--order",
        type=click.Choice(["sorted", "natural"]),
        default="sorted",
        show_default=True,
        help="Order of the classes: by characters, as ImageFolder, or c2 before c10, as timm.",
    )
    @click.option("--leaf-classes", is_flag=True, help="The folder that holds a file is its class, as for timm.")
    @click.option("--follow-links", is_flag=True, help="Follow symbolic links that lead out of SRC, or to folders.")
    @click.option("--dry-run", is_flag=True, help="Say what would be done, and write nothing.")
    @_JSON
    @functools.wraps(command)
    def wrapped(src: str, dst: str, *, as_json: bool, **given: Any) -> None:
        _run(functools.partial(command, src, dst), given, "file", as_json=as_json)

    return wrapped


def _pairs(context: click.Context, parameter: click.Parameter, values: Sequence[str]) -> dict[str, str]:
    """Parse `NAME=VALUE` for each time that the option was given."""
    pairs = {}
    for value in values:
        name, equals, told = value.partition("=")
        if not equals:
            raise click.BadParameter(f"{value!r}: write {parameter.opts[0]} {parameter.make_metavar(context)}")
        pairs[name] = told
    return pairs


TABLE_FORM: Final = options(
    click.option("--separator", default="", metavar="CHARACTER", help="Between cells (default: from the first line)."),
    click.option(
        "--quote",
        type=click.Choice(QUOTES),
        help="Quotes around cells (default: none if the separator is a tab, else double).",
    ),
    click.option("--escape", default="", metavar="CHARACTER", help="Makes the character after it literal."),
)
"""The form of a table in text."""
_PACK_COLUMNS: Final = click.option(
    "--pack-columns",
    "packed",
    metavar="NAME=COLUMN,...",
    multiple=True,
    callback=_pairs,
    help="Store columns of numbers as one array; 'pixel*' names several.",
)
_MORE_OPTIONS: Final = {
    "csv": options(TABLE_FORM, _PACK_COLUMNS),
    "jsonl": _PACK_COLUMNS,
    "parquet": _PACK_COLUMNS,
    "hf": _PACK_COLUMNS,
}
"""The options of some formats."""


def dialect_of(given: dict[str, Any]) -> Dialect:
    """Return the form of a table in text that the options tell, which are removed from `given`."""
    return Dialect(given.pop("separator", ""), given.pop("quote", None) or "", given.pop("escape", ""))


_FIELD_OPTIONS: Final = options(
    click.option("--columns", metavar="NAME,...", help="The columns to take (default: all)."),
    click.option(
        "--field",
        "told",
        metavar="NAME=CODEC",
        multiple=True,
        callback=_pairs,
        help=f"Store a field with another codec: {' '.join(CODECS)}. NEW=COLUMN renames a column.",
    ),
    click.option(
        "--null",
        "nulls",
        metavar="NAME=VALUE",
        multiple=True,
        callback=_pairs,
        help="Value in place of a missing one (default: it is an error).",
    ),
)


def import_verb(kind: str, run: Run) -> Callable[..., None]:
    """Make the command that converts one format of another tool; `run` converts with its options."""

    @_always
    @_MORE_OPTIONS.get(kind, options())
    @_split
    @_FIELD_OPTIONS
    @_CLASSES
    @click.option("--label", metavar="COLUMN", help="The column of class numbers, which becomes the field label.")
    @_on_error("sample")
    @click.option(
        "--validate/--no-validate",
        default=None,
        help="Decode every image and audio file, too (default: only its first bytes are looked at).",
    )
    @one_machine
    @_JSON
    def verb(
        src: str,
        dst: str,
        *,
        columns: str | None,
        told: dict[str, str],
        nulls: dict[str, str],
        label: str | None,
        as_json: bool,
        **given: Any,
    ) -> None:
        packed = {name: names_of(some) for name, some in given.pop("packed", {}).items()}
        dialect = dialect_of(given)
        codecs, renames = fields_told(told)
        choice = FieldMapping(names_of(columns), codecs, nulls, renames, packed, dialect, label=label or "")
        _run(functools.partial(run, kind, src, dst, choice=choice), given, "sample", as_json=as_json)

    return verb


def token_verb(run: Callable[..., Report]) -> Callable[..., None]:
    """Make the command that converts token files; `run` converts with its options."""

    @_always
    @click.option("--dtype", type=click.Choice(DTYPES), help="Type of the tokens in files that do not say it.")
    @click.option("--block", type=click.IntRange(1), help="Tokens of each sample (default: a sample is a document).")
    @click.option("--stride", type=click.IntRange(1), help="Tokens from one block to the next (default: --block).")
    @click.option("--end-of-text", type=click.IntRange(0), help="The token at the end of each document.")
    @click.option("--vocabulary", type=click.IntRange(1), help="Refuse tokens that are not below this number.")
    @one_machine
    @_JSON
    def verb(
        src: str,
        dst: str,
        *,
        dtype: str | None,
        block: int | None,
        stride: int | None,
        end_of_text: int | None,
        vocabulary: int | None,
        as_json: bool,
        **given: Any,
    ) -> None:
        tokens = TokenOptions(dtype, block, stride, end_of_text, vocabulary)
        _run(functools.partial(run, src, dst, tokens=tokens), given | {"on_error": "fail"}, "sample", as_json=as_json)

    return verb


@click.group()
def convert() -> None:
    """Convert files, or data of another tool, into a data set."""


def table_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of a table next to a folder of images. The command receives keywords of `convert_images`."""

    @click.option("--table", type=click.Path(), help="CSV, TSV, JSON lines or Parquet with a row for each image.")
    @click.option("--key", metavar="NAME", help="The column of that table that names the images.")
    @click.option(
        "--gather",
        metavar="NAME,...",
        help="Columns of which an image with several rows gets a list of all; '*' means all columns.",
    )
    @TABLE_FORM
    @_FIELD_OPTIONS
    @functools.wraps(command)
    def wrapped(
        *positional: Any,
        columns: str | None,
        gather: str | None,
        told: dict[str, str],
        nulls: dict[str, str],
        **given: Any,
    ) -> Any:
        codecs, renames = fields_told(told)
        chosen = FieldMapping(
            names_of(columns), codecs, nulls, renames, dialect=dialect_of(given), gather=names_of(gather)
        )
        return command(*positional, choice=None if chosen == FieldMapping() else chosen, **given)

    return wrapped


@convert.command()
@folder_verb
@table_options
@several_machines
def images(
    src: str,
    dst: str,
    options: Options,
    on_progress: OnProgress,
    table: str | None,
    key: str | None,
    choice: FieldMapping | None,
    **together: Any,
) -> Report | TaskReport:
    """Convert the image folder SRC into the data set DST.

    Folders at the top of SRC are classes, in the order of ImageFolder. Without such folders the data set has no labels.
    Files are stored unchanged, and the type of a file is found from its contents. SRC and DST may be URLs such as
    s3://bucket/name, and SRC a zip: train.zip, or a folder in it, train.zip/cats. If a conversion was stopped, the same
    command continues it.
    """
    beside: dict[str, Any] = {"table": table, "key": key, "choice": choice}
    plan = functools.partial(plan_images, src, dst, options, **beside)
    report = convert_together(plan, dst, options, on_progress, **together)
    return convert_images(src, dst, options, **beside, on_progress=on_progress) if report is None else report


TRANSCRIPTS: Final = click.option(
    "--transcripts",
    type=click.Path(),
    help="TSV or CSV of path and text, or a manifest: NeMo, Lhotse, Kaldi (folder), LJSpeech, Common Voice. Default:"
    " name.txt or name.lab next to name.wav, and *.trans.txt as in LibriSpeech.",
)
TEXT_COLUMNS: Final = click.option(
    "--columns", metavar="NAME,...", help="Other columns of that table to take, each as a field of text."
)


@convert.command()
@TRANSCRIPTS
@TEXT_COLUMNS
@TABLE_FORM
@folder_verb
@several_machines
def audio(
    src: str,
    dst: str,
    options: Options,
    on_progress: OnProgress,
    transcripts: str | None,
    columns: str | None,
    **together: Any,
) -> Report | TaskReport:
    """Convert the audio folder SRC into the data set DST.

    Folders at the top of SRC are classes. Without such folders the data set has no labels. Files are stored unchanged.
    SRC and DST may be URLs such as s3://bucket/name, and SRC a zip: speech.zip, or a folder in it, speech.zip/train. If
    a conversion was stopped, the same command continues it.
    """
    names = names_of(columns)
    texts: dict[str, Any] = {"transcripts": transcripts, "columns": names, "dialect": dialect_of(together)}
    plan = functools.partial(plan_audio, src, dst, options, **texts)
    report = convert_together(plan, dst, options, on_progress, **together)
    return convert_audio(src, dst, options, **texts, on_progress=on_progress) if report is None else report


IMPORTS: Final = {
    "webdataset": "Convert the tar files SRC: a folder, a file, or a pattern as 'part-{000..146}.tar'.",
    "parquet": "Convert the Parquet files SRC: a folder, a file, or a pattern.",
    "hf": "Convert a data set of Hugging Face: the folder of save_to_disk, Parquet files, or hf://datasets/OWNER/NAME.",
    "mds": "Convert the folder SRC that mosaicml-streaming has written.",
    "litdata": "Convert the folder SRC that LitData has written.",
    "jsonl": "Convert the JSON lines SRC: a folder, a file, or a pattern.",
    "csv": "Convert the CSV or TSV files SRC: a folder, a file, or a pattern.",
}
"""The formats of other tools, each with the first sentence of its help."""

for _kind, _help in IMPORTS.items():
    convert.command(_kind, help=f"{_help} {_EVERYWHERE}")(import_verb(_kind, convert_from))

TOKENS_HELP: Final = "Convert the token files SRC (.bin, .npy, .npz): a file, or a pattern."
convert.command("tokens", help=f"{TOKENS_HELP} {_EVERYWHERE}")(token_verb(convert_tokens))


@click.command()
@click.argument("dst", type=FOLDER)
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON, and no progress.")
def seal(dst: Path, as_json: bool) -> int:  # noqa: FBT001 - click passes options by name
    """Finalise the data set DST that tasks of `brand convert` made.

    Exit code 1 means that chunks are missing or damaged; the report lists the tasks that make them. A second run
    changes nothing.
    """
    check_single(dst, "`brand append` has finished its segments,")
    with meter(quiet=as_json) as show:
        try:
            report = seal_data_set(dst, _shown_by(show))
        except MissingChunksError as error:
            if not as_json:
                raise
            print_json({"target": str(dst), "missing": list(error.chunks), "tasks": error.tasks})
            return 1
    if as_json:
        print_json(report.to_json())
    else:
        print_report(report)
    return 0


def names_of(columns: str | None) -> tuple[str, ...]:
    return tuple(name.strip() for name in (columns or "").split(",") if name.strip())


def print_report(report: Report, noun: str = "file") -> None:
    """Print the result of a conversion or of its dry run; `noun` names one item of the source."""
    would = "would become" if report.dry_run else "is now" if report.samples == 1 else "are now"
    classes = "" if report.classes is None else f" in {counted(len(report.classes), 'class', 'classes')}"
    packed = "not compressed"
    if report.compression == "zstd":
        share = 100 * report.stored_bytes / max(1, report.source_bytes)
        packed = f"compressed to {share:.0f} %" + (" with a dictionary" if report.dictionary_bytes else "")
    echo(
        f"{counted(report.samples, 'sample')}{classes} {would} {counted(report.chunks, 'chunk')}"
        f" of {report.chunk_size:,} in {report.target}"
    )
    if report.classes is None and noun == "file":
        echo("No classes: there are no class folders, or they were not asked for")
    if report.classes is not None:
        more = "" if len(report.classes) <= _SHOWN else f" and {len(report.classes) - _SHOWN:,} more"
        echo(f"Classes: {', '.join(report.classes[:_SHOWN])}{more}")
    about = "about " if report.dry_run else ""
    echo(f"{size(report.source_bytes)} of samples, {about}{size(report.stored_bytes)} stored ({packed})")
    if report.chunks_found:
        echo(f"{counted(report.chunks_found, 'chunk')} found, from a run that was stopped")
    for note in report.notes:
        echo(note)
    for fact in report.noticed:
        echo(noticed_line(fact))
    if report.skipped:
        echo(
            f"{counted(len(report.skipped), noun)} cannot be used"
            + ("" if report.dry_run else f"; all are listed in {report.target}/skipped.tsv")
            + ":"
        )
        for problem in report.skipped[:_SHOWN]:
            echo(f"  {problem.path}: {problem.reason}")
        if len(report.skipped) > _SHOWN:
            echo(f"  and {len(report.skipped) - _SHOWN:,} more")
    if report.dry_run:
        echo(f"It would take about {duration(report.seconds)}. Nothing was written.")
    else:
        echo(f"Done in {duration(report.seconds)}. `brand info {report.target}` shows what is in it.")
