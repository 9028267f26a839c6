"""A log of all stimuli and of the decisions that followed, and its replay: would the server decide the same again?

Decisions are pure (`NodeState`), so the log holds each stimulus with its time, and a digest of the instructions that
followed. `replay` gives the same stimuli to a new `NodeState` over the same data set, without clients, storage or other
nodes. The log holds no results of instructions (plans, cached samples), and bytes only of samples fetched by name.

A log is lines of JSON. The first line describes the server. Each other line is an entry:

    {"at": seconds, "is": stimulus or "step", fields ..., "then": digest, "raises": name of the error or null}
"""

from __future__ import annotations

import base64
import json
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import astuple, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import xxhash

from brand.errors import BrandError, UsageError, pack_error, unpack_error
from brand.formats.preparation import DecodeAudio, DecodeImage
from brand.node.decide import stimuli
from brand.node.decide.cache.caching import CacheStart, FolderStart
from brand.node.decide.core import DecodingStart
from brand.node.decide.node_state import NodeState
from brand.node.decide.planner import make_plan, make_window
from brand.node.decide.reads.operations import StorageFacts, StoredChunks
from brand.node.decide.state.choosing import ChooseCached
from brand.node.decide.state.instructions import (
    Forget,
    Instruction,
    MakePlan,
    MakeWindow,
    Read,
    ReadFor,
    Rows,
    Write,
)
from brand.node.decide.state.members import Members
from brand.node.decide.stimuli import (
    KeptChosen,
    NodeSays,
    PlanMade,
    ReadEnded,
    ReadForEnded,
    Stimulus,
    WindowMade,
    WriteEnded,
)
from brand.node.memory.allocator import Allocator
from brand.node.memory.pages import NoMemory, PageCounts, PagePool, pages_needed
from brand.node.memory.residents import Residents
from brand.node.wire import messages
from brand.node.wire.decoding import PAGE, DecodeSpec
from brand.node.wire.described import DESCRIBED
from brand.node.wire.drawing import Drawer
from brand.node.wire.numbers import NodeNumber, RunNumber
from brand.node.wire.peer_messages import Push, PushPart, Vote
from brand.orders.base.joins import Join, Joins
from brand.orders.base.random import blocks
from brand.orders.order import Order
from brand.reprs import Reprs

VERSION: Final = 15
MOST_BYTES: Final = 1 << 28
"""A log ends at this size, in bytes."""

log = logging.getLogger("brand.node")

_STEP: Final = "step"
_OF_FOLDER: Final = ("folder", "limit", "stopped")
_OF_CACHE: Final = ("placement", "epochs", "whole_unit")
_VALUES: Final = {
    value.__name__: value
    for value in (
        *(value for value in vars(stimuli).values() if isinstance(value, type) and is_dataclass(value)),
        *DESCRIBED,
        *(Push, PushPart, Drawer, Join, Joins, Vote, DecodeSpec, DecodeImage, DecodeAudio),
    )
}
"""Classes that a log may name."""


class Recorder(Reprs, shows="_file.name _left"):
    """Writes a log to `path`, until the file has `most_bytes` or cannot be written.

    Raises `UsageError` if the file cannot be opened for writing.
    """

    def __init__(self, path: str | os.PathLike[str], state: NodeState, most_bytes: int = MOST_BYTES) -> None:
        try:
            self._file = open(path, "w", encoding="utf-8", buffering=1)  # noqa: SIM115 - closed by `close`
        except OSError as error:
            raise UsageError(f"the record {os.fspath(path)} cannot be written: {error.strerror}") from None
        self._most_bytes = self._left = most_bytes
        self._write(_describe(state))

    def told(self, now_s: float, stimulus: Stimulus, then: Sequence[Instruction], error: BrandError | None) -> None:
        self._entry(now_s, _pack_stimulus(stimulus), then, error)

    def stepped(self, now_s: float, unsent: Mapping[NodeNumber, int], then: Sequence[Instruction]) -> None:
        self._entry(now_s, {"is": _STEP, "unsent": [[node, size] for node, size in unsent.items()]}, then, None)

    def close(self) -> None:
        self._file.close()

    def _entry(self, now_s: float, what: dict[str, Any], then: Sequence[Instruction], error: BrandError | None) -> None:
        raises = None if error is None else type(error).__name__
        self._write({"at": now_s, **what, "then": digest(then), "raises": raises})

    def _write(self, entry: dict[str, Any]) -> None:
        if not self._left:
            return
        line = json.dumps(entry) + "\n"
        try:
            if len(line) > self._left:
                raise OSError(f"it has reached its limit of {self._most_bytes:,} bytes")
            self._file.write(line)
            self._left -= len(line)
        except OSError as error:  # the server continues without a record
            self._left = 0
            log.warning("the record %s ends here: %s", self._file.name, error)


def replay(path: str | os.PathLike[str], index: Rows, pages_of: PageCounts) -> int:
    """Make the decisions of a log again. Returns the number of entries.

    `pages_of` are the pages of each sample, shape (samples,), `index` has the rows of the same data set. Raises
    `UsageError` if the file is no such log, and at the first decision that differs; the message names its line.
    """
    with open(path, encoding="utf-8") as file:
        lines = file.read().splitlines()
    head = _parse(path, 1, lines[0] if lines else "")
    if head.get("version") != VERSION or head.get("samples") != len(pages_of):
        raise UsageError(f"{os.fspath(path)} is not a record of a server of this data set and this version of Brand")
    player = _Player(head, index, pages_of)
    for number, line in enumerate(lines[1:], 2):
        entry = _parse(path, number, line)
        try:
            then, raised = player.play(entry)
            same = digest(then) == entry["then"] and raised == entry["raises"]
        except (KeyError, TypeError, ValueError, AttributeError, AssertionError) as error:
            raise UsageError(f"{os.fspath(path)}, line {number}, is not an entry of a record: {error!r}") from error
        if not same:
            names = ", ".join(type(instruction).__name__ for instruction in then) or raised or "nothing"
            raise UsageError(
                f"{os.fspath(path)}, line {number} ({entry['is']}): now {names} follows, which differs from the record"
            )
    return len(lines) - 1


def digest(instructions: Sequence[Instruction]) -> str:
    """Return a digest of instructions: 16 hexadecimal digits. The bytes of samples and their addresses do not count."""
    text = json.dumps([_pack(instruction) for instruction in instructions])
    return xxhash.xxh3_64_hexdigest(text.encode())


class _Player:
    """Feeds a `NodeState` with the stimuli of a log, and with the results of its own instructions."""

    def __init__(self, head: dict[str, Any], index: Rows, pages_of: PageCounts) -> None:
        self._page = int(head["page"])
        allocator = Allocator(int(head["pages"]) * self._page, self._page)
        members = Members(NodeNumber(head["node"]), head["nodes"], head["share_chunks"])
        residents = Residents(PagePool(allocator, NoMemory(self._page), pages_of), members.nodes)
        cache = _unpack_cache(head["cache"], index, pages_of, self._page)
        size, depth, remote, storage = (head[name] for name in ("chunk_size", "depth", "remote_pages", "storage"))
        pages, *numbers = head["prepared"] or (0,)
        prepared = DecodingStart(Allocator(pages * PAGE, PAGE), *numbers) if pages else None
        data = StoredChunks(index, size, StorageFacts(*storage))
        self._state = NodeState(data, residents, members, depth, remote, cache, prepared)
        self._pages_of = pages_of
        self._begun: dict[tuple[Any, ...], Any] = {}
        """Instructions whose results are stimuli, by kind and number."""

    def play(self, entry: dict[str, Any]) -> tuple[list[Instruction], str | None]:
        """Return the result of an entry: instructions, and the name of the error or None."""
        try:
            if entry["is"] == _STEP:
                then = self._state.step(entry["at"], {NodeNumber(node): size for node, size in entry["unsent"]})
            else:
                then = self._state.handle(self._unpack_stimulus(entry), entry["at"])
        except BrandError as error:
            return [], type(error).__name__
        for instruction in then:
            match instruction:
                case MakeWindow(_, number, window):
                    self._begun[MakeWindow, number, window.first] = instruction
                case MakePlan(number) | ChooseCached(number) | Read(number) | Write(number):
                    self._begun[type(instruction), number] = instruction
                case ReadFor(node, number, opening):
                    self._begun[ReadFor, node, number, opening] = instruction
        return then, None

    def _unpack_stimulus(self, entry: dict[str, Any]) -> Stimulus:
        match entry["is"]:
            case "PlanMade":
                run, epoch = entry["key"]
                key = RunNumber(run), epoch
                wanted: MakePlan = self._begun[MakePlan, key]
                return make_plan(replace(wanted, joins=_unpack(entry["joins"])))
            case "WindowMade":
                window: MakeWindow = self._begun.pop((MakeWindow, entry["number"], entry["first"]))
                return make_window(window)
            case "KeptChosen":
                choice = self._begun.pop((ChooseCached, entry["number"]))
                kept = choice.kept(self._pages_of)
                return KeptChosen(choice.number, kept, choice.cached(kept), choice.since, choice.whole_unit)
            case "ReadEnded":
                failed, left, chunks, took = (tuple(entry[name]) for name in ("failed", "left", "chunks", "seconds"))
                return ReadEnded(self._begun.pop((Read, entry["read"])), failed, left, chunks, took)
            case "WriteEnded":
                return WriteEnded(self._begun.pop((Write, entry["write"])), _unpack(entry["held"]), entry["stopped"])
            case "ReadForEnded":
                read_for = self._begun.pop((ReadFor, *entry["read"]))
                return ReadForEnded(read_for, _unpack(entry["data"]), entry["error"] and unpack_error(entry["error"]))
            case "NodeSays" if entry["message"]["is"] in ("Push", "PushPart"):
                sent = {name: _unpack(each) for name, each in entry["message"].items() if name not in ("is", "pages")}
                data = NoMemory(self._page).take_out(np.zeros(entry["message"]["pages"], np.int32))
                kind = Push if entry["message"]["is"] == "Push" else PushPart
                return NodeSays(NodeNumber(entry["node"]), kind(**sent, data=data))
        stimulus: Stimulus = _unpack(
            {name: value for name, value in entry.items() if name not in ("at", "then", "raises")}
        )
        return stimulus


def _describe(state: NodeState) -> dict[str, Any]:
    residents, members, preparing = state.core.residents, state.members, state.preparing
    return {
        "version": VERSION,
        "samples": len(residents.pages_of),
        "chunk_size": state.core.data.chunk_size,
        "page": residents.pool.allocator.page,
        "pages": residents.pool.allocator.count,
        "remote_pages": state.core.remote_pages,
        "storage": astuple(state.core.data.storage),
        "depth": state.depth,
        "node": members.node,
        "nodes": members.nodes,
        "share_chunks": members.share_chunks,
        "cache": _pack_cache(state.core.caching.start),
        "prepared": preparing
        and [preparing.memory.allocator.count, preparing.workers.count, preparing.specs.least, preparing.allotment],
    }


def _pack_cache(start: CacheStart | None) -> dict[str, Any] | None:
    if start is None:
        return None
    folders = [
        {name: getattr(folder, name) for name in _OF_FOLDER}
        | {"held": base64.b64encode(np.packbits(folder.held).tobytes()).decode()}
        for folder in start.folders
    ]
    return {name: getattr(start, name) for name in _OF_CACHE} | {"folders": folders}


def _unpack_cache(value: dict[str, Any] | None, index: Rows, pages_of: PageCounts, page: int) -> CacheStart | None:
    """Invert `_pack_cache`. The sizes are those of the index, if they agree with the pages."""
    if value is None:
        return None
    samples = len(pages_of)
    sizes = np.empty(samples, np.uint32)
    for part in blocks(samples):
        rows = index.rows(part.start, part.stop)
        sizes[part] = np.where(pages_needed(rows["size"], page) == pages_of[part], rows["size"], 0)
    folders = []
    for folder in value["folders"]:
        held = np.unpackbits(np.frombuffer(base64.b64decode(folder["held"]), np.uint8), count=samples)
        folders.append(FolderStart(held=held.astype(np.bool_), **{name: folder[name] for name in _OF_FOLDER}))
    return CacheStart(tuple(folders), sizes, **{name: value[name] for name in _OF_CACHE})


def _pack_stimulus(stimulus: Stimulus) -> dict[str, Any]:
    """Return a stimulus as plain values, without the results of instructions."""
    match stimulus:
        case PlanMade(key, _, _, joins):
            return {"is": "PlanMade", "key": key, "joins": _pack(joins)}
        case WindowMade(_, number, window):
            return {"is": "WindowMade", "number": number, "first": window.first}
        case KeptChosen(number):
            return {"is": "KeptChosen", "number": number}
        case ReadEnded(read, failed, left, chunks, took):
            pieces = {"failed": failed, "left": left, "chunks": chunks, "seconds": took}
            return {"is": "ReadEnded", "read": read.number, **pieces}
        case WriteEnded(write, held, stopped):
            return {"is": "WriteEnded", "write": write.number, "held": _pack(held), "stopped": stopped}
        case ReadForEnded(read, data, error):
            which, wrong = (read.node, read.number, read.opening), error and pack_error(error)
            return {"is": "ReadForEnded", "read": which, "data": _pack(data), "error": wrong}
    packed: dict[str, Any] = _pack(stimulus)
    return packed


def _pack(value: Any) -> Any:
    """Return a value as plain values. For a `Push` or `PushPart`, the log has only the number of its pages."""
    match value:
        case None | bool() | int() | float() | str():
            return value
        case bytes() | memoryview():
            return {"bytes": base64.b64encode(value).decode()}
        case np.ndarray():
            return {"array": value.dtype.str, "bytes": base64.b64encode(value.tobytes()).decode()}
        case tuple() | list():
            return [_pack(each) for each in value]
        case dict():
            return {"object": value}
        case Order():
            facts = messages.order_facts(value)
            return {"is": "Order", "json": facts.pop("order"), **facts}
        case BrandError():
            return f"{type(value).__name__}: {value}"
        case Push(number, places, missed, data):
            sent = {"number": number, "places": _pack(places), "missed": _pack(missed), "pages": len(data)}
            return {"is": "Push", **sent}
        case PushPart(number, place, first, data):
            return {"is": "PushPart", "number": number, "place": place, "first": first, "pages": len(data)}
        case Read(number, pieces, _, places, heads):
            return [number, _pack(pieces), _pack(places), _pack(heads)]
        case MakeWindow(key, number, window):
            return [_pack(key), number, window.first, window.end, window.begins]
        case Write(number, folder, places, _, pages):
            return [number, folder, _pack(places), _pack(pages)]
        case Forget(folder, places, parts):
            return [folder, _pack(places), parts]
        case ChooseCached(number, _, unit, seed, room, _, shelf, follow):
            packed = [number, unit, seed, room, None if shelf is None else [shelf.limits.tolist(), shelf.unit]]
            return packed + ([] if follow is None else [follow.way, follow.epoch, follow.start, follow.number])
    return {"is": type(value).__name__} | {field.name: _pack(getattr(value, field.name)) for field in fields(value)}


def _unpack(value: Any) -> Any:
    """Invert `_pack`; lists become tuples."""
    match value:
        case {"array": dtype, "bytes": text}:
            return np.frombuffer(base64.b64decode(text), np.dtype(dtype))
        case {"object": found}:
            return found
        case {"bytes": text}:
            return base64.b64decode(text)
        case {"is": "Order", "json": order}:
            return messages.unpack_order({**value, "order": order})
        case {"is": name}:
            return _VALUES[name](**{field: _unpack(each) for field, each in value.items() if field != "is"})
        case list():
            return tuple(map(_unpack, value))
    return value


def _parse(path: str | os.PathLike[str], number: int, line: str) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise UsageError(f"{Path(path)}, line {number}, is not an entry of a record")
    return found
