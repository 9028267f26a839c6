"""A second reader, written from docs/reference/format.md alone: it shares no code with Brand, and checks much."""

from __future__ import annotations

import json
import re
import struct
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
import zstandard

DTYPES = ["?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16"]  # number 1 is the first
CODECS_1_0 = "int|float|str|bytes|json|ndarray|image|audio"
CODECS = CODECS_1_0 + (
    r"|list\[(int|float|str|ndarray|image|audio)\]"
    r"|(image|list\[image\])\[(upright|(L|RGBA|unchanged)(,upright)?)\]"
)
ROW = np.dtype([("offset", "<u8"), ("size", "<u4"), ("raw_size", "<u4"), ("checksum", "<u8"), ("index", "<u8")])


def check(condition: bool, what: str) -> None:
    """The one error that this reader knows."""
    if not condition:
        raise ValueError(what)


class Chunk:
    """One chunk file (section 2), checked whole but for the samples themselves."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        magic, major, _, h, d, n, self.number, f, self.id, checksum = struct.unpack_from("<8sHHIIIQQ16sQ", data)
        check(magic == b"\x89BRAND\r\n" and major == 1, "magic or major version")
        check(h <= 16 << 20 and d <= 1 << 20 and n <= 1 << 24 and f == len(data), "sizes in the preamble")
        start = 64 + h + d + 32 * n
        check(xxhash.xxh3_64_intdigest(data[:56] + data[64:start]) == checksum, "checksum of the front")
        self.header = json.loads(zstandard.ZstdDecompressor().decompress(data[64 : 64 + h]))
        self.dictionary = zstandard.ZstdCompressionDict(data[64 + h : 64 + h + d]) if d else None
        self.rows = np.frombuffer(data, ROW, n, 64 + h + d)
        for row in self.rows:
            check(row["offset"] == start and row["size"] <= row["raw_size"], "a gap, an overlap or a size")
            start += int(row["size"])
        check(start == len(data), "end of the last sample")

    def record(self, slot: int) -> bytes:
        """The record of one sample (section 2.3)."""
        row = self.rows[slot]
        stored = self.data[int(row["offset"]) :][: int(row["size"])]
        check(xxhash.xxh3_64_intdigest(stored) == row["checksum"], "checksum of the sample")
        if row["size"] == row["raw_size"]:
            return stored
        check(zstandard.frame_content_size(stored) == row["raw_size"], "content size of the zstd frame")
        return zstandard.ZstdDecompressor(dict_data=self.dictionary).decompress(stored)


def value(codec: str, payload: bytes) -> Any:
    """The value in the payload of a variable field (section 3)."""
    if codec in ("str", "json"):
        return payload.decode() if codec == "str" else json.loads(payload)
    if codec == "ndarray":
        shape = struct.unpack_from(f"<{payload[1]}I", payload, 2)
        dtype = np.dtype(DTYPES[payload[0] - 1]).newbyteorder("<")
        return np.frombuffer(payload[2 + 4 * payload[1] :], dtype).reshape(shape).copy()
    if codec in ("list[int]", "list[float]"):
        return np.frombuffer(payload, "<i8" if codec == "list[int]" else "<f8").tolist()
    if codec.startswith("list["):
        (n,) = struct.unpack_from("<I", payload)
        ends = np.cumsum([4 + 4 * n, *struct.unpack_from(f"<{n}I", payload, 4)]).tolist()
        check(ends[-1] == len(payload), "end of a list")
        return [value(codec[5:-1], payload[low:high]) for low, high in pairwise(ends)]
    return payload


def fields(schema: list[list[str]], record: bytes) -> dict[str, Any]:
    """The values in a record (section 3); images and audio are bytes."""
    fixed = [f for f in schema if f[1] in ("int", "float")]
    variable = [f for f in schema if f[1] not in ("int", "float")]
    numbers = struct.Struct("<" + "".join("q" if c == "int" else "d" for _, c in fixed) + "I" * len(variable))
    head = numbers.unpack_from(record)
    values: dict[str, Any] = dict(zip([name for name, _ in fixed], head, strict=False))
    start = numbers.size
    for (name, codec), length in zip(variable, head[len(fixed) :], strict=True):
        values[name], start = value(codec, record[start : start + length]), start + length
    check(start == len(record), "end of the record")
    return {name: values[name] for name, _ in schema}


def checksum_of(facts: dict[str, Any]) -> str:
    """The checksum of a JSON document without its own (section 5)."""
    text = json.dumps(facts, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return xxhash.xxh3_64_hexdigest(text.encode())


class Reader:
    """A data set by its index (sections 1, 4 and 5); every checksum is checked. `codecs`: those that it knows."""

    def __init__(self, folder: Path, codecs: str = CODECS) -> None:
        self.manifest = m = json.loads((folder / "brand.json").read_bytes())
        for name, codec in m["header"]["schema"]:
            check(m["version"][0] == 1 and re.fullmatch(codecs, codec) is not None, f"{name} has the codec {codec}")
        rest = {key: value for key, value in m.items() if key != "checksum"}
        check(checksum_of(rest) == m["checksum"], "checksum of the manifest")
        for name, (size, digest) in {**m["files"], **m["companions"]}.items():
            data = (folder / name).read_bytes()
            check((len(data), xxhash.xxh3_128_hexdigest(data)) == (size, digest), f"checksum of {name}")
        self.chunks = [Chunk((folder / f"chunks/{k:08d}.brand").read_bytes()) for k in range(m["chunks"])]
        self.place, self.rows = np.load(folder / "index/place.npy"), np.load(folder / "index/samples.npy")
        known = np.load(folder / "index/chunks.npy")
        for number, chunk in enumerate(self.chunks):
            check((chunk.number, chunk.id.hex(), chunk.header) == (number, m["id"], m["header"]), "a foreign chunk")
            check(known[number].tobytes() == chunk.data[32:40] + chunk.data[56:64], "chunks.npy")
        check(bool((np.concatenate([chunk.rows for chunk in self.chunks]) == self.rows).all()), "samples.npy")

    def names(self, field: str) -> list[str]:
        """The names of the values of a field (section 2.2)."""
        header = self.manifest["header"]
        names = header.get("field_classes", {}).get(field) or (header["classes"] if field == "label" else None)
        check(bool(names) and field.partition(".")[0] in dict(header["schema"]), "a field without names")
        return list(names or ())

    def sample(self, index: int) -> dict[str, Any]:
        """The fields of the sample with this index."""
        place, size = int(self.place[index]), int(self.manifest["header"]["chunk_size"])
        check(self.rows[place]["index"] == index, "place.npy")
        return fields(self.manifest["header"]["schema"], self.chunks[place // size].record(place % size))


class Collection:
    """A version of a collection (section 11); every part and list is checked."""

    def __init__(self, folder: Path, number: int) -> None:
        self.folder, self.version = folder, json.loads((folder / f"versions/{number:08d}.json").read_bytes())
        facts = {key: value for key, value in self.version.items() if key != "checksum"}
        check(checksum_of(facts) == self.version["checksum"] and facts["format"] == "brand-version", "checksum")
        own = {key: value for key, value in facts.items() if key not in ("id", "format", "version")}
        own["parts"] = [{key: value for key, value in part.items() if key != "merged"} for part in facts["parts"]]
        check(facts["id"][16:] == f"{number:08x}" + checksum_of(own)[:8], "id of the version")
        self.deleted = set(self.list(self.version["deleted"]))
        self.runs: list[tuple[int, int, Reader | None, list[int]]] = []
        first = 0
        for part in self.version["parts"]:
            reader = Reader(folder / "parts" / part["id"]) if part["id"] else None
            absent = self.list(part["absent"])
            held = len(reader.place) if reader else 0
            check(held == part["samples"] == part["end"] - first - len(absent), "samples of a part")
            check(reader is None or reader.manifest["id"] == part["id"], "id of a part")
            check(set(absent) <= self.deleted, "an absent index that is not deleted")
            check("merged" not in part or self.version["version"] == [1, 3], "the minor version of merged segments")
            self.list(part.get("merged"))
            self.runs.append((first, part["end"], reader, absent))
            first = part["end"]

    def list(self, listed: list[Any] | None, dtype: str = "<u8") -> list[Any]:
        """The numbers of a list."""
        if listed is None:
            return []
        data = (self.folder / f"lists/{listed[1]}.npy").read_bytes()
        check(xxhash.xxh3_128_hexdigest(data) == listed[1], "digest of a list")
        values: list[Any] = np.frombuffer(data, dtype, listed[0], len(data) - 8 * listed[0]).tolist()
        check(dtype != "<u8" or values == sorted(set(values)), "order of a list")
        return values

    def sample(self, index: int) -> dict[str, Any]:
        """The fields of the sample with this index, and its overlays."""
        check(index not in self.deleted, "a deleted sample")
        first, _, reader, absent = next(run for run in self.runs if run[0] <= index < run[1])
        check(reader is not None, "a part without samples")
        assert reader is not None
        sample = reader.sample(index - first - sum(other < index for other in absent))
        for name, (codec, *listed) in self.version["overlays"].items():
            values = self.list(listed, "<i8" if codec == "int" else "<f8")
            nothing = -(2**63) if codec == "int" else float("nan")
            sample[name] = values[index] if index < len(values) else nothing
        return sample
