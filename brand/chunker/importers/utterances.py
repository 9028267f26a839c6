"""The utterances of a manifest as `Shards`: whole recordings unchanged, and segments as files of their own.

A segment is cut when it is read. A recording of integers becomes FLAC of as many bits, one of floats WAV, so no value
changes; MP3, Ogg and other lossy recordings are rounded to 16 bits. A shard is a run of rows of the manifest. The last
recording stays open, because manifests list the segments of a recording one after the other.
"""

from __future__ import annotations

import io
import math
import mmap
import os
import stat
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any, Final

import numpy as np
import xxhash

from brand.chunker.importers.manifests import SpeechManifest, Utterance
from brand.chunker.sources.listing import RESERVED, not_taken
from brand.chunker.sources.objects import ObjectPath, SourcePath, is_below
from brand.chunker.sources.shards import Bad, Block, Shard, Shards
from brand.chunker.sources.source import DURATION, intact
from brand.chunker.sources.trees import CHANGED, FileFacts, contents, tree_of
from brand.errors import MissingExtraError, SourceError, UsageError, counted
from brand.formats.audio import DecodedAudio, OpenAudio, duration, has_soundfile, opened, soundfile
from brand.formats.header import Schema
from brand.formats.noticed import Noticed
from brand.printable import printable

_SHARD_ROWS: Final = 64
_SHARD_BYTES: Final = 64 << 20
_BLOCK_BYTES: Final = 4 << 20
SAME_S: Final = 0.1
"""A stretch from the begin that ends at most this many seconds before the end of its file is the whole file."""
OVERSHOOT_S: Final = 0.5
"""A stretch may end this many seconds after the end of its file, as Kaldi's extract-segments permits."""
_FORMS: Final = {
    "PCM_24": ("int32", "FLAC", "PCM_24"),
    "ALAC_20": ("int32", "FLAC", "PCM_24"),
    "ALAC_24": ("int32", "FLAC", "PCM_24"),
    "PCM_32": ("int32", "WAV", "PCM_32"),
    "ALAC_32": ("int32", "WAV", "PCM_32"),
    "FLOAT": ("float32", "WAV", "FLOAT"),
    "DOUBLE": ("float64", "WAV", "DOUBLE"),
}
"""Coding of a recording -> type of its values, and format and coding of its segments; others have 16 bits."""
_LOSSY: Final = ("VORBIS", "OPUS", "MPEG_LAYER_I", "MPEG_LAYER_II", "MPEG_LAYER_III", "FFMPEG")
_FLAC_CHANNELS: Final = 8
_CUT: Final = Noticed("segments", 1, "", "{count} segment[s] cut from [its recording|recordings]")
_ROUNDED: Final = Noticed(
    "segments_rounded", 1, "", "{count} segment[s] of lossy recordings [is|are] rounded to 16 bits"
)

_FLAC_RATE: Final = 655_350

_File = tuple[SourcePath, FileFacts]
"""Folder of a recording, and the recording below it."""


class Utterances(Shards):
    """The utterances that a manifest lists, in its order."""

    kind = "audio"

    def __init__(self, manifest: SpeechManifest, root: SourcePath) -> None:
        self._measured = has_soundfile()
        self._files: dict[str, _File | None] = {}
        self._rows: list[Utterance | Bad] = []
        bases = [folder / name for folder in (root, manifest.path.parent) for name in manifest.folders]
        for row in manifest.rows():
            self._rows.append(row)
            if isinstance(row, Utterance) and row.path not in self._files:
                self._files[row.path] = _found(row.path, root, [*bases, Path()])
        if not self._rows:
            raise SourceError(str(manifest.path), "there are no rows in it")
        for name in manifest.columns:
            if name in RESERVED:
                raise UsageError(f"--columns {name}: every sample has a field of this name; rename the column")
        missing = [name for name in manifest.columns if name not in manifest.seen]
        if missing:
            there = ", ".join(manifest.seen) or "none"
            raise UsageError(f"--columns {missing[0]}: {manifest.path} has no such column; there are {there}")
        if not self._measured and any(isinstance(row, Utterance) and _is_stretch(row) for row in self._rows):
            soundfile()
        self._root, self._manifest = root, manifest.path.name
        self._cuts = _cuts(self._rows, self._files)
        fields = [("audio", "audio"), *([DURATION] if self._measured else []), ("text", "str")]
        schema = Schema.parse([*fields, *((name, "str") for name in manifest.columns), ("key", "str")])
        self._columns = manifest.columns
        shards = [self._shard(low, high) for low, high in self._cuts]
        empty = sum(isinstance(row, Utterance) and not row.text for row in self._rows)
        notes = [f"{counted(empty, 'row')} without a text; the text is empty there"] if empty else []
        notes += _repeated(self._rows)
        if not self._measured:
            notes.append("No field `duration`: pip install 'brand-data[audio]' before converting, to measure the audio")
        left = [name for name in manifest.seen if name not in manifest.columns]
        notes += [not_taken(manifest.path, left)] if left else []
        super().__init__(shards, schema, repr(manifest.columns), notes)

    def _shard(self, low: int, high: int) -> Shard:
        rows = self._rows[low:high]
        files = {row.path: self._files[row.path] for row in rows if isinstance(row, Utterance)}
        size = sum(file[1].size for file in files.values() if file is not None)
        told = [None if file is None else (str(file[0] / file[1].key), *file[1][1:]) for file in files.values()]
        mark = xxhash.xxh3_128_hexdigest(repr((rows, told)).encode("utf-8", "surrogateescape"))
        return Shard(self._manifest, size, mark, high - low)

    def read(self, number: int) -> Iterator[Block | Bad | Noticed]:
        """Yield the utterances of one shard, as `Shards.read` does."""
        low, high = self._cuts[number]
        samples: list[dict[str, Any]] = []
        called: list[str] = []
        held = 0
        files = [self._files[row.path] for row in self._rows[low:high] if isinstance(row, Utterance)]
        with _Recordings([file for file in files if file is not None]) as recordings:
            for row in self._rows[low:high]:
                if isinstance(row, Bad):
                    yield row
                    continue
                try:
                    sample, facts = self._sample(row, recordings)
                except (ValueError, OSError, MissingExtraError) as error:
                    yield Bad(row.called, f"{row.path}: {error}")
                    continue
                yield from facts
                samples.append(sample)
                called.append(row.called)
                held += len(sample["audio"])
                if held >= _BLOCK_BYTES:
                    yield self._block(samples, called)
                    samples, called, held = [], [], 0
        if samples:
            yield self._block(samples, called)

    def _block(self, samples: list[dict[str, Any]], called: list[str]) -> Block:
        return Block({name: [sample[name] for sample in samples] for name in self.schema.names}, called)

    def _sample(self, row: Utterance, recordings: _Recordings) -> tuple[dict[str, Any], list[Noticed]]:
        """Return a sample, and facts about it.

        Raises ValueError if the row cannot be used, `SourceError` if a file has changed.
        """
        file = self._files[row.path]
        if file is None:
            raise ValueError("there is no such audio file in the folder, nor next to the manifest")
        audio, seconds, facts = _audio_of(row, file, recordings, measure=self._measured)
        key = self._key(row, file, cut=bool(facts))
        values = dict(zip(self._columns, row.values, strict=True))
        sample = {"audio": audio, "duration": seconds, "text": row.text, **values, "key": key}
        return sample, [replace(fact, example=printable(key)) for fact in facts]

    def _key(self, row: Utterance, file: _File, *, cut: bool) -> str:
        if row.key:
            return row.key
        name = file[1].key
        if isinstance(self._root, Path):
            inside = os.path.relpath(name, self._root)
            name = row.path if inside.startswith("..") else Path(inside).as_posix()
        return f"{name}#{row.begin}" if cut else name


def _is_stretch(row: Utterance) -> bool:
    """Return whether a row may be a part of its recording."""
    return row.begin > 0 or not math.isnan(row.seconds) or row.channel is not None


def _repeated(rows: Sequence[Utterance | Bad]) -> list[str]:
    """Return a note if several rows are one whole recording: they may mean parts, in columns that are not read."""
    times = Counter(row.path for row in rows if isinstance(row, Utterance) and not _is_stretch(row))
    count = sum(n for n in times.values() if n > 1)
    what = "name a recording that another row names, too, and hold it whole"
    return [f"{counted(count, 'row')} {what}: offset and duration, in seconds, make segments"] if count else []


def _found(path: str, root: SourcePath, bases: Sequence[SourcePath]) -> _File | None:
    """Return the file with this path below the first folder that has it; None if there is none.

    Files in a store or in a zip are found below the source only.
    """
    for base in bases:
        if isinstance(base, ObjectPath):
            full, tree = base / path, tree_of(root)
            key = str(full)[len(str(root)) + 1 :]
            if is_below(full, root) and tree.is_file(key):
                facts = tree.facts(key)
                return None if isinstance(facts, str) else (root, facts)
            continue
        name = os.path.join(base, path)
        try:
            found = Path(name).stat()
        except (OSError, ValueError):
            continue
        if stat.S_ISREG(found.st_mode):
            return Path(), FileFacts(name, found.st_size, found.st_mtime_ns)
    return None


def _cuts(rows: Sequence[Utterance | Bad], files: dict[str, _File | None]) -> list[tuple[int, int]]:
    """Cut the rows into shards, between recordings if their rows follow each other."""
    cuts, low, size, last = [], 0, 0, ""
    for number, row in enumerate(rows):
        path = row.path if isinstance(row, Utterance) else last
        if path != last:
            if number - low >= _SHARD_ROWS or size >= _SHARD_BYTES:
                cuts.append((low, number))
                low, size = number, 0
            file = files.get(path)
            size, last = size + (0 if file is None else file[1].size), path
    return [*cuts, (low, len(rows))] if low < len(rows) else cuts


class _Recordings:
    """Opens the recordings `files`, in their order; the last one stays open, and later ones are requested ahead."""

    def __init__(self, files: Sequence[_File]) -> None:
        self._held = ExitStack()
        self._file: _File | None = None
        self._audio: OpenAudio | DecodedAudio | None = None
        self._data: bytes | mmap.mmap = b""
        runs = [file for file, _ in groupby(files) if isinstance(file[0], ObjectPath)]
        self._ahead = zip(runs, contents(runs[0][0], [facts for _, facts in runs]) if runs else (), strict=True)

    def __enter__(self) -> _Recordings:
        return self

    def __exit__(self, *_: object) -> None:
        self._held.close()

    def whole(self, file: _File) -> bytes | mmap.mmap:
        """Return the contents of a recording. Raises ValueError if it is empty, `SourceError` if it has changed."""
        if self._file == file:
            return self._data
        self._held.close()
        self._held, self._audio, self._file = ExitStack(), None, None
        if isinstance(file[0], ObjectPath):
            self._data = bytes(intact(next(data for other, data in self._ahead if other == file)))
        else:
            with open(file[1].key, "rb") as stream:
                _check_unchanged(stream.fileno(), file[1])
                if not file[1].size:
                    raise ValueError("the file is empty")
                self._data = self._held.enter_context(mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ))
        self._file = file
        return self._data

    def open(self, file: _File) -> OpenAudio | DecodedAudio:
        """Open a recording. Raises ValueError if it is no audio, `SourceError` if it has changed."""
        data = self.whole(file)
        if self._audio is None:
            self._audio = self._held.enter_context(opened(data))
        return self._audio


def _check_unchanged(descriptor: int, file: FileFacts) -> None:
    facts = os.fstat(descriptor)
    if (facts.st_size, facts.st_mtime_ns) != (file.size, file.mark):
        raise SourceError(file.key, CHANGED)


def _audio_of(
    row: Utterance, file: _File, recordings: _Recordings, *, measure: bool
) -> tuple[bytes, float, list[Noticed]]:
    """Return the file of a sample, its seconds, and facts about a segment; whole files have none."""
    if not _is_stretch(row):
        data = bytes(recordings.whole(file))
        return data, duration(data) if measure else math.nan, []
    audio = recordings.open(file)
    total = audio.frames / audio.rate
    end = total if math.isnan(row.seconds) else row.begin + row.seconds
    if row.begin >= total or end > total + OVERSHOOT_S:
        raise ValueError(f"the row says {row.begin:g} to {end:g} s, and the recording has {total:.3f} s")
    channel = None if audio.channels == 1 else row.channel
    if row.begin == 0 and channel is None and end >= total - SAME_S:
        data = bytes(recordings.whole(file))
        return data, duration(data), []
    if channel is not None and channel >= audio.channels:
        raise ValueError(f"the row says channel {channel}, and the recording has {audio.channels}")
    first, last = round(row.begin * audio.rate), min(audio.frames, round(end * audio.rate))
    if last <= first:
        raise ValueError(f"the row says {row.begin:g} to {end:g} s, which is no frame")
    facts = [_CUT, _ROUNDED] if audio.subtype in _LOSSY else [_CUT]
    return _written(audio, first, last, channel), (last - first) / audio.rate, facts


def _written(audio: OpenAudio | DecodedAudio, first: int, last: int, channel: int | None) -> bytes:
    """Return some frames of a recording as a file."""
    dtype, form, subtype = _FORMS.get(audio.subtype, ("int16", "FLAC", "PCM_16"))
    if audio.subtype in _LOSSY:
        floats = audio.read(first, last)
        samples = np.clip(np.rint(floats * 32768), -32768, 32767).astype(np.int16)
    else:
        samples = audio.read(first, last, dtype)
    if channel is not None:
        samples = samples[:, [channel]]
    if samples.shape[1] > _FLAC_CHANNELS or audio.rate > _FLAC_RATE:
        form = "WAV"
    file = io.BytesIO()
    soundfile().write(file, samples, audio.rate, format=form, subtype=subtype)
    return file.getvalue()
