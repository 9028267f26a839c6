"""Which stretches of which recordings does a manifest of speech list, and with which texts?

    JSON lines     NeMo (`audio_filepath`, `offset`, `duration`, `text`), Lhotse (cuts, or supervisions with the
                   recordings next to them), and other lines with a path and a text
    Kaldi          a folder with `wav.scp`, `text`, and perhaps `segments`
    LJSpeech       `metadata.csv`: name, text and normalized text, separated by `|`
    Common Voice   a TSV that begins with `client_id`; its audio is in `clips`

Other tables name texts of the files of a folder; `sources.listing` reads these. A row that cannot be used becomes
`Bad`.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TextIO

from brand.chunker.importers.files import reading, with_compressed
from brand.chunker.sources.listing import PATH_NAMES, TEXT_NAMES, TableRows
from brand.chunker.sources.objects import SourcePath
from brand.chunker.sources.shards import Bad
from brand.chunker.sources.texttable import Dialect
from brand.errors import SourceError, UsageError, counted

_JSON: Final = tuple(with_compressed(".json", ".jsonl", ".ndjson"))
_PATHS: Final = ("audio_filepath", *PATH_NAMES)
_NEMO: Final = ("offset", "duration")
_LINE_BYTES: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class Utterance:
    """One row of a manifest."""

    called: str
    """Name in messages: `line 3`."""
    key: str
    """Identifier in the manifest; empty if it has none."""
    path: str
    """Path of the recording, as the manifest writes it."""
    text: str
    begin: float = 0.0
    """Seconds."""
    seconds: float = math.nan
    """Length of the stretch; nan up to the end of the recording."""
    channel: int | None = None
    """Channel of a recording with several; None for all of them."""
    values: tuple[str, ...] = ()
    """Values of the wanted columns."""


Rows = Iterator[Utterance | Bad]


class SpeechManifest:
    """A manifest; its rows can be read once."""

    def __init__(self, kind: str, path: SourcePath, columns: Sequence[str], dialect: Dialect | None = None) -> None:
        self.path, self.columns, self.dialect = path, tuple(columns), dialect or Dialect()
        self.seen: dict[str, None] = {}
        """Names of columns that rows have and that are not read otherwise; known after the rows were read."""
        self._rows, self.folders = _KINDS[kind]

    def rows(self) -> Rows:
        """Yield the rows in order. Raises `SourceError`, `UsageError` if the manifest cannot be read."""
        return self._rows(self)

    def values(self, row: Mapping[str, Any], used: Sequence[str] = ()) -> tuple[str, ...]:
        """Return the values of the wanted columns as texts, and note the names of the row."""
        for name in row:
            if name not in used:
                self.seen[name] = None
        return tuple(_as_text(row.get(name)) for name in self.columns)


def kind_of_manifest(path: SourcePath) -> str | None:
    """Return the kind of a manifest; None for any other file or folder. Raises `SourceError`."""
    if (path / "wav.scp").is_file():
        return "kaldi"
    if isinstance(path, Path) and path.is_dir():
        return None
    if path.name.lower().endswith(_JSON):
        return "json"
    with reading(path, str(path)) as file:
        first = file.readline(_LINE_BYTES).decode("utf-8-sig", "replace").rstrip("\r\n")
    names = [name.strip().lower() for name in first.split("\t")]
    if names[0] == "client_id" and {"path", "sentence"} <= set(names):
        return "common voice"
    cells = first.split("|")
    header = {*PATH_NAMES, *TEXT_NAMES} & {cell.strip().lower() for cell in cells}
    if len(cells) in (2, 3) and not header and not {",", "\t"} & set(cells[0]):
        # A path and two columns is no LJSpeech: one of the columns may be a speaker.
        return "ljspeech" if len(cells) == 2 or not _has_suffix(first) else None
    return None


@contextmanager
def _text(path: SourcePath) -> Iterator[TextIO]:
    """Open a text file, also a compressed one, in UTF-8. Raises `SourceError`."""
    try:
        with reading(path, str(path)) as stream:
            yield io.TextIOWrapper(stream, "utf-8-sig", newline="\n")
    except UnicodeDecodeError as error:
        raise SourceError(str(path), f"it is not UTF-8: {error.reason} at byte {error.start + 1}") from error


def _as_text(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _number(name: str, value: Any, missing: float) -> float:
    """Return seconds. Raises ValueError for anything else; null is missing."""
    if value is None:
        return missing
    try:
        seconds = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise ValueError(f"{name} is {value!r:.40}, and a number of seconds was expected")
    return seconds


def _of_json(manifest: SpeechManifest) -> Rows:
    others: dict[str, Any] | None = None
    for called, row in _objects(manifest.path):
        if isinstance(row, str):
            yield Bad(called, row)
            continue
        try:
            if "recording" in row or str(row.get("type", "")).endswith("Cut"):
                yield _cut(manifest, called, row)
            elif "recording_id" in row:
                others = _recordings(manifest.path) if others is None else others
                yield _supervision(manifest, called, row, others)
            elif "sources" in row and "sampling_rate" in row:
                raise UsageError(
                    f"{manifest.path} lists recordings without texts: give the supervisions or cuts of Lhotse"
                )
            else:
                yield _line(manifest, called, row)
        except UsageError:
            raise
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            why = f"it has no {error}" if isinstance(error, KeyError) else str(error)
            yield Bad(called, why)


def _objects(path: SourcePath) -> Iterator[tuple[str, dict[str, Any] | str]]:
    """Yield the objects of JSON lines, or of one array; for a line that has none, in words why."""
    with _text(path) as file:
        for number, line in enumerate(file, 1):
            if number == 1 and line.lstrip().startswith("["):
                yield from _items(path, line + file.read())
                return
            if line.strip():
                yield f"line {number}", _parsed(line)


def _items(path: SourcePath, text: str) -> Iterator[tuple[str, dict[str, Any] | str]]:
    try:
        items = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SourceError(str(path), f"it is no JSON: {error}") from error
    for number, item in enumerate(items, 1):
        yield f"item {number}", item if isinstance(item, dict) else "it is no object"


def _parsed(line: str) -> dict[str, Any] | str:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        return f"it is no JSON: {error}"
    return row if isinstance(row, dict) else f"it holds a {type(row).__name__}, and an object was expected"


def _line(manifest: SpeechManifest, called: str, row: dict[str, Any]) -> Utterance:
    """Return the row of NeMo, or any other row with a path and a text."""
    path = next((name for name in _PATHS if name in row), None)
    if path is None:
        raise ValueError(f"it names no audio file: expected one of {', '.join(_PATHS)}")
    if not isinstance(row[path], str):
        raise ValueError(f"{path} is a {type(row[path]).__name__}, and one path was expected")
    text = next((name for name in TEXT_NAMES if name in row), "text")
    said = row.get(text)
    if not isinstance(said, str | None):
        raise ValueError(f"{text} is a {type(said).__name__}, and a text was expected")
    begin, seconds = _number("offset", row.get("offset"), 0.0), _number("duration", row.get("duration"), math.nan)
    values = manifest.values(row, (path, text, *_NEMO))
    return Utterance(called, "", row[path], (said or "").strip(), begin, seconds, None, values)


def _cut(manifest: SpeechManifest, called: str, row: dict[str, Any]) -> Utterance:
    """Return a cut of Lhotse."""
    if row.get("type", "MonoCut") != "MonoCut" or "recording" not in row:
        raise ValueError(f"it is a {row.get('type')} without a recording of its own: only MonoCut is read")
    said = row.get("supervisions") or []
    text = " ".join(part["text"] for part in said if part.get("text"))
    values = manifest.values({**row, **(said[0] if said else {})}, _LHOTSE)
    path = _source(row["recording"], row.get("channel"))
    begin, seconds = _number("start", row["start"], 0.0), _number("duration", row["duration"], math.nan)
    return Utterance(called, str(row["id"]), *path[:1], text.strip(), begin, seconds, path[1], values)


def _supervision(
    manifest: SpeechManifest, called: str, row: dict[str, Any], recordings: Mapping[str, Any]
) -> Utterance:
    """Return a supervision of Lhotse."""
    if row["recording_id"] not in recordings:
        raise ValueError(f"there is no recording {row['recording_id']!r}")
    path, channel = _source(recordings[row["recording_id"]], row.get("channel"))
    begin, seconds = _number("start", row["start"], 0.0), _number("duration", row["duration"], math.nan)
    values = manifest.values(row, _LHOTSE)
    return Utterance(called, str(row["id"]), path, (row.get("text") or "").strip(), begin, seconds, channel, values)


_LHOTSE: Final = ("id", "start", "duration", "channel", "supervisions", "recording", "recording_id", "type", "text")


def _source(recording: Mapping[str, Any], channel: Any) -> tuple[str, int | None]:
    """Return the file of a recording of Lhotse, and the channel in the file. Raises ValueError if it is no file."""
    if recording.get("transforms"):
        raise ValueError("its recording has transforms: save the cuts with their audio first")
    wanted = channel if isinstance(channel, list) else [channel]
    if len(wanted) != 1 or not isinstance(wanted[0], int | None):
        raise ValueError(f"its channels are {channel!r:.40}: one channel of a recording is read")
    sources = recording["sources"]
    source = next((one for one in sources if wanted[0] is None or wanted[0] in one["channels"]), None)
    if source is None or source["type"] != "file":
        kind = "no file with that channel" if source is None else f"a source of type {source['type']!r}"
        raise ValueError(f"its recording has {kind}, and a file was expected")
    return source["source"], None if wanted[0] is None else source["channels"].index(wanted[0])


def _recordings(supervisions: SourcePath) -> dict[str, Any]:
    """Return the recordings of Lhotse that lie next to supervisions, by identifier."""
    path = supervisions.with_name(supervisions.name.replace("supervisions", "recordings"))
    if path == supervisions or not path.is_file():
        raise UsageError(
            f"{supervisions} lists supervisions, and the recordings that they name are not next to it: expected"
            f" {supervisions.name.replace('supervisions', 'recordings')!r}"
        )
    return {row["id"]: row for _, row in _objects(path) if isinstance(row, dict) and "id" in row}


def _of_kaldi(manifest: SpeechManifest) -> Rows:
    folder = manifest.path
    files = _table(folder / "wav.scp")
    texts = _table(folder / "text") if (folder / "text").is_file() else {}
    columns = [_table(folder / name) for name in manifest.columns]
    manifest.seen.update(dict.fromkeys(manifest.columns))
    segments = _table(folder / "segments") if (folder / "segments").is_file() else None
    named = set[str]()
    for key, rest in (files if segments is None else segments).items():
        called = f"{'wav.scp' if segments is None else 'segments'}, {key}"
        try:
            recording, begin, seconds = (key, 0.0, math.nan) if segments is None else _segment(rest)
            if recording not in files:
                raise ValueError(f"there is no recording {recording!r} in wav.scp")
            if files[recording].endswith("|"):
                raise ValueError("its recording is a command, and a file was expected: write the output to WAV or FLAC")
        except ValueError as error:
            yield Bad(called, str(error))
            named.add(key)
            continue
        named.add(key)
        values = tuple(column.get(key, "") for column in columns)
        yield Utterance(called, key, files[recording], texts.get(key, ""), begin, seconds, None, values)
    for key in texts:
        if key not in named:
            yield Bad(f"text, {key}", "there is no such utterance in segments or wav.scp")


def _table(path: SourcePath) -> dict[str, str]:
    """Return the lines of a file of Kaldi, by their first words. Raises `SourceError` if one comes twice."""
    found: dict[str, str] = {}
    with _text(path) as file:
        for number, line in enumerate(file, 1):
            key, *rest = line.split(None, 1)[:2] or [""]
            if key in found:
                raise SourceError(f"{path}, line {number}", f"{key!r} is named a second time")
            if key:
                found[key] = rest[0].strip() if rest else ""
    return found


def _segment(text: str) -> tuple[str, float, float]:
    words = text.split()
    if len(words) not in (3, 4):
        raise ValueError(f"{text!r:.60} is not a recording, a begin and an end")
    begin = _number("the begin", words[1], 0.0)
    if words[2] == "-1":
        return words[0], begin, math.nan
    end = _number("the end", words[2], 0.0)
    if end <= begin:
        raise ValueError(f"it ends at {end:g} s, and begins at {begin:g} s")
    return words[0], begin, end - begin


def _of_ljspeech(manifest: SpeechManifest) -> Rows:
    names, width = ("id", "transcript", "normalized"), 0
    with _text(manifest.path) as file:
        for number, line in enumerate(file, 1):
            cells = line.rstrip("\r\n").split("|")
            if not any(cells):
                continue
            width = width or len(cells)
            if len(cells) != width or not cells[0]:
                yield Bad(f"line {number}", f"it has {counted(len(cells), 'column')}, and {width} were expected")
                continue
            values = manifest.values(dict(zip(names, cells, strict=False)), ("id", names[len(cells) - 1]))
            name = cells[0] if _has_suffix(line) else f"{cells[0]}.wav"
            yield Utterance(f"line {number}", "", name, cells[-1].strip(), values=values)


def _has_suffix(line: str) -> bool:
    return Path(line.partition("|")[0]).suffix.lower() in _SUFFIXES


_SUFFIXES: Final = (".wav", ".flac", ".mp3", ".ogg", ".opus")


def _of_common_voice(manifest: SpeechManifest) -> Rows:
    rows = TableRows(manifest.path, manifest.columns, manifest.dialect)
    for line, path, text, *values in rows:
        yield Utterance(f"line {line}", "", path.strip(), text.strip(), values=tuple(value.strip() for value in values))
    manifest.seen.update(dict.fromkeys([*manifest.columns, *rows.left]))


_KINDS: Final[dict[str, tuple[Callable[[SpeechManifest], Rows], tuple[str, ...]]]] = {
    "json": (_of_json, ("",)),
    "kaldi": (_of_kaldi, ("",)),
    "ljspeech": (_of_ljspeech, ("wavs", "")),
    "common voice": (_of_common_voice, ("clips", "")),
}
"""Kind -> reader of its rows, and the folders below the source in which its audio may be."""
