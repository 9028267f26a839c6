"""Token files of language models become documents or blocks: the same tokens as NumPy reads from the file."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import brand
from brand.chunker import Options, Report, TokenOptions, convert_tokens
from brand.collect import append_tokens
from brand.errors import SourceError, UsageError
from tests.support import brand as run

END = 50256
JOBS = Options(jobs=1)


def documents(count: int = 300, dtype: str = "uint16", seed: int = 0) -> list[NDArray[Any]]:
    """Documents of 1 to 60 tokens; each ends with the end-of-text token."""
    random = np.random.default_rng(seed)
    return [np.append(random.integers(0, END, random.integers(0, 60)), END).astype(dtype) for _ in range(count)]


def written(path: Path) -> list[NDArray[Any]]:
    """The tokens of the samples, by index."""
    reader = brand.open(path)
    samples = reader.samples(range(len(reader)))
    if "count" in samples[0]:
        assert [sample["count"] for sample in samples] == [len(sample["tokens"]) for sample in samples]
    return [sample["tokens"] for sample in samples]


def same(found: list[NDArray[Any]], expected: list[NDArray[Any]]) -> bool:
    """To the type."""
    return len(found) == len(expected) and all(
        one.dtype == other.dtype and np.array_equal(one, other) for one, other in zip(found, expected, strict=True)
    )


def megatron(folder: Path, lengths: NDArray[np.int32], borders: list[int], code: int, tokens: NDArray[Any]) -> Path:
    """The two files of Megatron, as `megatron.core.datasets.indexed_dataset` lays them out."""
    begins = (np.cumsum(lengths, dtype=np.int64) - lengths) * tokens.dtype.itemsize
    head = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, code, len(lengths), len(borders))
    (folder / "corpus.idx").write_bytes(
        head + lengths.tobytes() + begins.tobytes() + np.array(borders, np.int64).tobytes()
    )
    tokens.tofile(folder / "corpus.bin")
    return folder / "corpus.bin"


Make = Callable[[Path, list[NDArray[Any]]], tuple[Path, TokenOptions]]


def _flat(folder: Path, some: list[NDArray[Any]]) -> tuple[Path, TokenOptions]:
    np.concatenate(some).tofile(folder / "train.bin")
    return folder / "train.bin", TokenOptions(dtype=some[0].dtype.name, end_of_text=END)


def _llm_c(folder: Path, some: list[NDArray[Any]]) -> tuple[Path, TokenOptions]:
    tokens, head = np.concatenate(some), np.zeros(256, np.int32)
    head[:3] = {2: 20240520, 4: 20240801}[tokens.dtype.itemsize], 1, len(tokens)
    (folder / "train.bin").write_bytes(head.tobytes() + tokens.tobytes())
    return folder / "train.bin", TokenOptions(end_of_text=END)


def _npy(folder: Path, some: list[NDArray[Any]]) -> tuple[Path, TokenOptions]:
    np.save(folder / "train.npy", np.concatenate(some))
    return folder / "train.npy", TokenOptions(end_of_text=END)


def _npz(folder: Path, some: list[NDArray[Any]]) -> tuple[Path, TokenOptions]:
    np.savez(folder / "train.npz", first=np.concatenate(some[:100]), second=np.concatenate(some[100:]))
    return folder / "train.npz", TokenOptions(end_of_text=END)


def _megatron(folder: Path, some: list[NDArray[Any]]) -> tuple[Path, TokenOptions]:
    """Each document has one to three sequences."""
    lengths, borders = list[int](), [0]
    for tokens in some:
        first = len(tokens) // 3
        lengths += [first, len(tokens) - first] if first else [len(tokens)]
        borders.append(len(lengths))
    code = {"uint16": 8, "uint32": 4}[some[0].dtype.name]
    return megatron(folder, np.array(lengths, np.int32), borders, code, np.concatenate(some)), TokenOptions()


@pytest.mark.parametrize("dtype", ["uint16", "uint32"])
@pytest.mark.parametrize("make", [_flat, _llm_c, _npy, _npz, _megatron])
def test_documents(tmp_path: Path, make: Make, dtype: str) -> None:
    some = documents(dtype=dtype)
    source, tokens = make(tmp_path, some)
    report = convert_tokens(source, tmp_path / "set", Options(chunk_size=7, jobs=2), tokens=tokens)
    if make is _megatron and dtype == "uint32":  # Megatron has no type uint32
        some = [each.astype(np.int32) for each in some]
    assert same(written(tmp_path / "set"), some)
    assert f"{sum(map(len, some)):,} tokens in" in report.notes[0]
    assert report.noticed == ()


@pytest.mark.parametrize(("block", "stride"), [(1, None), (64, None), (65, 64), (64, 100), (9170, None), (50, 1)])
@pytest.mark.parametrize("make", [_flat, _llm_c, _npy, _npz, _megatron])
def test_blocks(tmp_path: Path, make: Make, block: int, stride: int | None) -> None:
    """As a loop over the file cuts them; what is left out is counted."""
    some = documents()
    source, given = make(tmp_path, some)
    files = [some[:100], some[100:]] if make is _npz else [some]
    expected, left = list[NDArray[Any]](), 0
    for tokens in map(np.concatenate, files):
        used = at = 0
        while at + block <= len(tokens):
            expected.append(tokens[at : at + block])
            used, at = at + block, at + (stride or block)
        left += len(tokens) - used
    if not expected:
        with pytest.raises(SourceError, match="there is no sample: the files are empty, or shorter than a block"):
            convert_tokens(source, tmp_path / "set", JOBS, tokens=TokenOptions(given.dtype, block, stride))
        return
    report = convert_tokens(source, tmp_path / "set", JOBS, tokens=TokenOptions(given.dtype, block, stride))
    assert same(written(tmp_path / "set"), expected)
    assert sum(fact.count for fact in report.noticed) == left
    assert all(fact.what == "tokens_left_out" for fact in report.noticed)


def test_a_matrix_has_a_document_in_each_row(tmp_path: Path) -> None:
    rows = np.arange(600, dtype=np.int32).reshape(20, 30)
    np.save(tmp_path / "rows.npy", rows)
    convert_tokens(tmp_path / "rows.npy", tmp_path / "set", JOBS)
    assert same(written(tmp_path / "set"), list(rows))


def test_tokens_after_the_last_end_are_a_document(tmp_path: Path) -> None:
    some = [*documents(20), np.array([1, 2, 3], np.uint16)]
    source, tokens = _flat(tmp_path, some)
    report = convert_tokens(source, tmp_path / "set", JOBS, tokens=tokens)
    assert same(written(tmp_path / "set"), some)
    (fact,) = report.noticed
    assert fact.text == "3 tokens after the last end of text are a document of their own"


def test_a_pattern_reads_its_files_by_name(tmp_path: Path) -> None:
    first, second = documents(30), documents(40, seed=1)
    np.concatenate(first).tofile(tmp_path / "train_0.bin")
    np.concatenate(second).tofile(tmp_path / "train_1.bin")
    np.concatenate(second).tofile(tmp_path / "val_0.bin")
    tokens = TokenOptions("uint16", end_of_text=END)
    convert_tokens(tmp_path / "train_*.bin", tmp_path / "set", JOBS, tokens=tokens)
    assert same(written(tmp_path / "set"), first + second)


def test_a_collection_grows(tmp_path: Path) -> None:
    for number in range(2):
        np.concatenate(documents(30, seed=number)).tofile(tmp_path / f"{number}.bin")
        append_tokens(
            tmp_path / f"{number}.bin", tmp_path / "all", JOBS, tokens=TokenOptions("uint16", end_of_text=END)
        )
    assert same(written(tmp_path / "all"), documents(30) + documents(30, seed=1))


def said(tmp_path: Path, name: str, **given: Any) -> str:
    """The error of a conversion."""
    with pytest.raises((SourceError, UsageError)) as caught:
        convert_tokens(tmp_path / name, tmp_path / "set", JOBS, tokens=TokenOptions(**given))
    assert not (tmp_path / "set" / "brand.json").exists()
    return str(caught.value)


def done(tmp_path: Path, name: str, **given: Any) -> Report:
    return convert_tokens(tmp_path / name, tmp_path / "set", JOBS, tokens=TokenOptions(**given))


def test_what_a_file_does_not_say_must_be_given(tmp_path: Path) -> None:
    """Each hint, followed, leads to the next, and then to the data set."""
    _flat(tmp_path, documents())
    np.arange(100, 200, dtype=np.uint16).tofile(tmp_path / "other.bin")
    assert "give --dtype uint16 (vocabularies up to 65,536" in said(tmp_path, "train.bin")
    assert "give --end-of-text TOKEN (50256 for GPT-2), or --block N" in said(tmp_path, "train.bin", dtype="uint16")
    assert "it has no token 3, so no document ends" in said(tmp_path, "other.bin", dtype="uint16", end_of_text=3)
    assert done(tmp_path, "train.bin", dtype="uint16", end_of_text=50256).samples == 300


@pytest.mark.parametrize(("dtype", "wrong"), [("uint32", "uint16"), ("uint16", "uint8"), ("int64", "uint32")])
def test_a_type_that_is_too_narrow_is_found(tmp_path: Path, dtype: str, wrong: str) -> None:
    """Every second value would be 0. The hint is followed."""
    tokens = np.random.default_rng(0).integers(0, 4000, 1000).astype(dtype)
    tokens.tofile(tmp_path / "train.bin")
    text = said(tmp_path, "train.bin", dtype=wrong, block=10)
    assert f"every second {wrong} is below 16, as if the type were {dtype}. Give --dtype {dtype}" in text
    assert done(tmp_path, "train.bin", dtype=dtype, block=10).samples == 100


def test_a_type_that_is_too_wide_is_found_by_the_vocabulary(tmp_path: Path) -> None:
    np.concatenate(documents())[:9000].tofile(tmp_path / "train.bin")
    text = said(tmp_path, "train.bin", dtype="uint32", block=10, vocabulary=50257)
    assert "is outside of the vocabulary of 50,257. The type of the tokens may be another one (--dtype)" in text


def test_a_token_outside_the_vocabulary_is_named(tmp_path: Path) -> None:
    some = documents()
    np.save(tmp_path / "train.npy", np.concatenate(some).astype(np.int32))
    flat = np.concatenate(some).astype(np.int32)
    flat[4321] = -1
    np.save(tmp_path / "negative.npy", flat)
    first = int(np.flatnonzero(flat == END)[0])
    text = said(tmp_path, "train.npy", end_of_text=END, vocabulary=END)
    assert f"train.npy: token {END:,} at position" in text
    assert int(text.partition("position ")[2].partition(" ")[0].replace(",", "")) in np.flatnonzero(flat == END)
    assert first >= 0
    assert "negative.npy: token -1 at position 4,321 is outside" in said(
        tmp_path, "negative.npy", end_of_text=END, vocabulary=END + 1
    )
    assert done(tmp_path, "train.npy", end_of_text=END, vocabulary=END + 1).samples == 300


def test_files_that_are_no_token_files(tmp_path: Path) -> None:
    """Cut, of another kind, compressed, of several types; heads that contradict the options or the size."""
    some = documents()
    flat = np.concatenate(some)
    (tmp_path / "odd.bin").write_bytes(flat.tobytes()[:-1])
    np.save(tmp_path / "floats.npy", flat.astype(np.float32))
    np.save(tmp_path / "cube.npy", np.zeros((2, 2, 2), np.int32))
    np.save(tmp_path / "right.npy", flat)
    (tmp_path / "cut.npy").write_bytes((tmp_path / "right.npy").read_bytes()[:60])
    np.savez_compressed(tmp_path / "small.npz", flat)
    (tmp_path / "no.npz").write_bytes(b"PK no")
    (tmp_path / "text.txt").write_text("tokens")
    (tmp_path / "empty.bin").write_bytes(b"")
    source, _ = _llm_c(tmp_path, some)
    source.rename(tmp_path / "head.bin")
    (tmp_path / "headcut.bin").write_bytes((tmp_path / "head.bin").read_bytes()[:-2])
    ends = {"end_of_text": END}
    assert "no whole number of uint16: it is truncated, or of another type" in said(
        tmp_path, "odd.bin", dtype="uint16", **ends
    )
    assert "it holds float32, and tokens are whole numbers" in said(tmp_path, "floats.npy", **ends)
    assert "an array of shape (2, 2, 2)" in said(tmp_path, "cube.npy", **ends)
    assert "cut.npy: it is no file of tokens" in said(tmp_path, "cut.npy", **ends)
    assert "it is compressed, so it cannot be mapped" in said(tmp_path, "small.npz", **ends)
    assert "no.npz: it is no file of tokens" in said(tmp_path, "no.npz", **ends)
    assert "the name of a token file ends with .bin, .npy, .npz" in said(tmp_path, "text.txt", **ends)
    assert "there is no sample" in said(tmp_path, "empty.bin", dtype="uint16", block=4)
    assert "its head says" in said(tmp_path, "headcut.bin", **ends)
    assert "the head of head.bin says uint16, and --dtype says uint32" in said(
        tmp_path, "head.bin", dtype="uint32", **ends
    )
    assert "right.npy holds uint16, and --dtype says int32" in said(tmp_path, "right.npy", dtype="int32", **ends)
    assert "is a folder, which may hold training and validation data: name a file" in said(tmp_path, "", **ends)
    np.save(tmp_path / "wide.npy", flat.astype(np.int64))
    assert "the types of tokens differ: " in said(tmp_path, "[rw]i*.npy", **ends)


@pytest.mark.parametrize(
    ("spoil", "text"),
    [
        (lambda idx, _: idx.write_bytes(b"X" + idx.read_bytes()[1:]), "it is no index of Megatron"),
        (lambda idx, _: idx.write_bytes(idx.read_bytes()[:-8]), "it is truncated"),
        (lambda _, tokens: tokens.write_bytes(tokens.read_bytes()[:-2]), "names tokens that the file does not have"),
        (lambda idx, _: idx.write_bytes(idx.read_bytes()[:-8] + struct.pack("<q", 1)), "do not cover its sequences"),
    ],
)
def test_a_damaged_index_of_megatron(tmp_path: Path, spoil: Callable[[Path, Path], object], text: str) -> None:
    source, _ = _megatron(tmp_path, documents())
    spoil(source.with_suffix(".idx"), source)
    assert text in said(tmp_path, "corpus.bin")


def test_a_file_that_changes(tmp_path: Path) -> None:
    source, tokens = _flat(tmp_path, documents())

    def change(_: Any) -> None:
        with source.open("ab") as file:
            file.write(b"\0\0")

    with pytest.raises(SourceError, match="the file changed while it was being converted"):
        convert_tokens(source, tmp_path / "set", Options(chunk_size=1, jobs=1), tokens=tokens, on_progress=change)


def test_the_command(tmp_path: Path) -> None:
    source, _ = _flat(tmp_path, documents())
    told = run("convert", "tokens", source, tmp_path / "set", "--dtype", "uint16", "--block", "65", "--stride", "64")
    assert told.code == 0
    assert "Noticed: " in told.out
    assert run("convert", "tokens", source, tmp_path / "other", "--stride", "3").code == 2
