"""A plain model of a collection, changes of both, and a change that is killed at a chosen moment."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from brand.chunker import Options
from brand.collect import NamedSamples, append_samples, compact, delete, overlay, redact, undelete
from brand.collect.home import writing
from brand.formats.constants import NOTHING
from brand.storage.dataset.dataset import StoredDataSet
from brand.storage.io.present import last_number

SCHEMA = {"number": "int", "share": "float", "data": "bytes", "key": "str"}
_WRITES = {"os.rename", "os.link", "os.remove", "os.mkdir", "os.rmdir", "os.truncate"}
_ADDS = ("w", "a", "x", "+")


def samples(first: int, count: int, *, mark: str = "") -> list[dict[str, Any]]:
    """Samples that differ in each field; `first` numbers them."""
    return [
        {"number": i * i, "share": i / 7, "data": f"{mark}{i}".encode() * (i % 5), "key": f"{mark or 'all'}/{i}"}
        for i in range(first, first + count)
    ]


def grow(folder: Path, first: int, count: int, *, chunk_size: int = 8, mark: str = "", compact: bool = False) -> None:
    """Append so many samples."""
    new = not (folder / "versions").is_dir() or last_number(folder) is None
    options = Options(chunk_size=chunk_size if new else None, jobs=1, compression="none" if new else "auto")
    append_samples(samples(first, count, mark=mark), folder, SCHEMA, options=options, compact=compact)


@dataclass(frozen=True)
class Model:
    """What a collection should hold."""

    samples: tuple[dict[str, Any], ...] = ()
    deleted: frozenset[int] = frozenset()
    gone: frozenset[int] = frozenset()
    """Deleted ones whose bytes are in no part of this version."""
    columns: dict[str, list[float]] = field(default_factory=dict)

    @property
    def present(self) -> list[int]:
        """Indices that are not deleted."""
        return [index for index in range(len(self.samples)) if index not in self.deleted]


Change = tuple[Callable[[Path], object], Model]
"""What it does to a folder, and the model afterwards."""


def some_change(model: Model, rng: Random, folder: Path, *, merging: bool = False) -> Change:
    """A change that is possible now. `merging`: appends compact."""
    kinds = ["append", "append", "delete", "delete", "overlay", "compact", "redact", "undelete"]
    kind = rng.choice(kinds) if model.samples else "append"
    count = len(model.samples)
    if kind in ("delete", "redact") and len(model.present) > 4:
        few = sorted(rng.sample(model.present, rng.randint(1, len(model.present) // 3)))
        gone = model.deleted | set(few)
        if kind == "delete":
            after = replace(model, deleted=gone)
            if rng.random() < 0.5:
                keys = [model.samples[index]["key"] for index in few]
                return lambda at: delete(at, NamedSamples(keys=keys)), after
            return lambda at: delete(at, NamedSamples(indices=few)), after
        report = folder.parent / f"report-{rng.getrandbits(64):x}.json"
        after = replace(model, deleted=gone, gone=model.gone | _of_parts(folder, few, gone))
        return lambda at: redact(at, NamedSamples(indices=few), report), after
    if kind == "overlay":
        values = [rng.randint(-9, 9) / 4 for _ in range(count)]
        name = rng.choice(["score", "length"])
        after = replace(model, columns={**model.columns, name: values})
        return lambda at: overlay(at, name, np.array(values)), after
    if kind == "compact" and model.deleted - model.gone:
        forget = rng.random() < 0.3
        return lambda at: compact(at, forget=forget), replace(model, gone=model.deleted)
    if kind == "undelete" and model.deleted - model.gone:
        back = sorted(rng.sample(sorted(model.deleted - model.gone), 1))
        return lambda at: undelete(at, back), replace(model, deleted=model.deleted - set(back))
    more = rng.randint(1, 30)
    new = samples(1000 * rng.randint(1, 10**6), more)
    first = int(new[0]["key"].split("/")[1])
    return lambda at: grow(at, first, more, compact=merging), replace(model, samples=(*model.samples, *new))


def _of_parts(folder: Path, touched: Sequence[int], deleted: frozenset[int]) -> set[int]:
    """Deleted samples in the parts of the present version that hold one of these: redacting writes all of a part."""
    version = StoredDataSet(folder).version
    assert version is not None
    runs = [range(part.first, part.end) for part in version.parts]
    hit = [run for run in runs if any(index in run for index in touched)]
    return {index for index in deleted if any(index in run for run in hit)}


def check(folder: Path, model: Model) -> None:
    """Reads, columns and draws of the present version are as the model says."""
    data = StoredDataSet(folder)
    assert len(data) == len(model.samples)
    assert data.present().tolist() == model.present
    found = data.samples(np.array(model.present))
    for index, sample in zip(model.present, found, strict=True):
        more = {
            name: values[index] if index < len(values) else NOTHING["float"] for name, values in model.columns.items()
        }
        assert [name for name, value in more.items() if not _alike(sample.pop(name), value)] == []
        assert sample == model.samples[index]
    numbers = [NOTHING["int"] if i in model.deleted else each["number"] for i, each in enumerate(model.samples)]
    assert data.column("number").tolist() == numbers
    drawn = data.drawn()
    places = np.arange(data.header.samples) if drawn is None else np.flatnonzero(drawn)
    assert sorted(data.indices(places).tolist()) == model.present


def _alike(one: float, other: float) -> bool:
    """Equal, or both NaN."""
    return one == other or (one != one and other != other)


def killed(action: Callable[[], object], folder: Path, step: int = 0, after_s: float = 0.0) -> bool:
    """Do something in a process of its own, which is killed before its `step`-th change of a file in `folder`.

    With `step` 0, it is killed after that time. Returns whether it was: else it ended before.
    """
    child = _forked(action, folder, step)
    if not step:
        time.sleep(after_s)
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return True
    assert os.WEXITSTATUS(status) == 0, "it failed"
    return False


@contextmanager
def beside(action: Callable[[], object], folder: Path) -> Iterator[None]:
    """Do something in a process of its own meanwhile; it must end well."""
    child = _forked(action, folder, 0)
    try:
        yield
    finally:
        _, status = os.waitpid(child, 0)
    assert status == 0, "it failed"


def _forked(action: Callable[[], object], folder: Path, step: int) -> int:
    child = os.fork()
    if child == 0:
        try:
            if step:
                die_before(folder, step)
            action()
        except BaseException:  # noqa: BLE001 - the parent says that it failed
            traceback.print_exc()
            os._exit(3)
        os._exit(0)
    return child


def die_before(folder: Path, step: int) -> None:
    """Kill this process before its `step`-th change of a file in `folder` from now on."""
    left, inside = [step], os.fspath(folder)

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, mode, flags = arguments
            changes = any(each in mode for each in _ADDS) if mode else bool((flags or 0) & os.O_CREAT)
        elif event in _WRITES:
            path, changes = arguments[0], True
        else:
            return
        if changes and os.fspath(path).startswith(inside) if isinstance(path, str | os.PathLike) else changes:
            left[0] -= 1
            if not left[0]:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


@dataclass(frozen=True)
class Work:
    """The files of a folder that a call used, and all bytes that it read and wrote through system calls."""

    opened: tuple[str, ...]
    """The subfolder of each file that it opened: `versions`, `parts`, ..."""
    listed: tuple[str, ...]
    """The folders that it listed."""
    read: int
    written: int


def work_of(action: Callable[[], object], folder: Path) -> Work:
    """Do something in a process of its own, and return which files it used."""
    reading, writing_end = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            opened, listed = list[str](), list[str]()
            sys.addaudithook(partial(_record, os.fspath(folder), opened, listed))
            before = _bytes_moved()
            action()
            read, written = (new - old for new, old in zip(_bytes_moved(), before, strict=True))
            os.write(writing_end, json.dumps([opened, listed, read, written]).encode())
        except BaseException:  # noqa: BLE001 - the parent says that it failed
            os._exit(3)
        os._exit(0)
    os.close(writing_end)
    with open(reading, "rb") as file:
        told = file.read()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, "it failed"
    opened, listed, read, written = json.loads(told)
    return Work(tuple(sorted(opened)), tuple(sorted(listed)), read, written)


def _record(folder: str, opened: list[str], listed: list[str], event: str, arguments: tuple[Any, ...]) -> None:
    if event not in ("open", "os.listdir", "os.scandir") or not isinstance(arguments[0], str | os.PathLike):
        return
    path = os.fspath(arguments[0])
    if path.startswith(f"{folder}/"):
        (opened if event == "open" else listed).append(path.removeprefix(f"{folder}/").split("/")[0])


def _bytes_moved() -> tuple[int, int]:
    """Bytes that this process has read and written so far, from files and from the page cache."""
    facts = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(facts["rchar"]), int(facts["wchar"])


def tidy(folder: Path) -> None:
    """Nothing lies in the folder that no version names."""
    named = [StoredDataSet(f"{folder}@{number}").version for number in numbers(folder)]
    parts = {part.id for version in named if version for part in version.parts if part.id}
    lists = {each.name for version in named if version for each in version.lists}
    assert {path.name for path in (folder / "parts").iterdir()} == parts
    assert {f"lists/{path.name}" for path in (folder / "lists").iterdir()} == lists
    assert list((folder / "staging").iterdir()) == []
    assert [path.name for path in (folder / "versions").iterdir() if path.name.startswith(".")] == []


def numbers(folder: Path) -> list[int]:
    """The numbers of all versions."""
    return sorted(int(path.stem) for path in (folder / "versions").glob("0*.json"))


def some_history(folder: Path, rng: Random, *, changes: int, share_killed: float, merging: bool = False) -> Model:
    """Change a collection so often, and read it after each change; a share of the changes is killed. Its model.

    A kill comes before one of the first 2^7 changes of files; most changes of a collection take 20 to 80. The
    next change removes what a kill leaves; with `merging`, the next writer does.
    """
    model = Model()
    for _ in range(changes):
        before = numbers(folder)
        change, after = some_change(model, rng, folder, merging=merging)
        step = int(2 ** rng.uniform(0, 7)) if rng.random() < share_killed else 0
        if step and killed(partial(change, folder), folder, step):
            model = after if numbers(folder)[-1:] > before[-1:] else model
        else:
            if not step:
                change(folder)
            model = after
            if merging:
                with writing(folder):
                    pass
            tidy(folder)
        if model.samples:
            check(folder, model)
    return model
