"""Data sets of the Hub: files are listed and refused by their names before anything is downloaded."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import pytest

from brand.chunker import convert_from
from brand.chunker.plan.report import StageProgress
from brand.errors import UsageError
from brand.storage.dataset.dataset import StoredDataSet
from tests.hubserver import HubServer, hub_with
from tests.support import options

pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")


def table(value: int) -> bytes:
    """A Parquet file of one row."""
    file = io.BytesIO()
    parquet.write_table(pyarrow.table({"n": [value]}), file)
    return file.getvalue()


FILES = {
    "README.md": b"# A data set",
    "en/train-00000-of-00002.parquet": table(0),
    "en/train-00001-of-00002.parquet": table(1),
    "en/test-00000-of-00001.parquet": table(2),
    "de/train-00000-of-00001.parquet": table(3),
}


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[HubServer]:
    """The Hub of this process, with an empty cache."""
    with hub_with(FILES, str(tmp_path / "cache"), monkeypatch) as found:
        yield found


def numbers(target: Path) -> list[int]:
    """The numbers in a data set, by index."""
    stored = StoredDataSet(target)
    return [stored.sample(index)["n"] for index in range(len(stored))]


def test_splits_are_refused_before_anything_is_downloaded(server: HubServer, tmp_path: Path) -> None:
    """But the card; then only the files of the chosen one are, and cached files of others do not join it."""
    url = "hf://datasets/owner/name"
    with pytest.raises(UsageError, match=r"--split de/train, --split en/test, --split en/train"):
        convert_from("hf", url, tmp_path / "set", options())
    with pytest.raises(UsageError, match=r"several parts with the name 'train'"):
        convert_from("hf", url, tmp_path / "set", options(split="train"))
    assert server.sent == ["README.md"]
    server.sent.clear()
    convert_from("hf", url, tmp_path / "test", options(split="test"))
    assert (numbers(tmp_path / "test"), server.sent) == ([2], ["en/test-00000-of-00001.parquet"])
    shown: list[StageProgress] = []
    report = convert_from("hf", f"{url}/en", tmp_path / "train", options(split="train"), on_progress=shown.append)
    assert numbers(tmp_path / "train") == [0, 1]
    size = sum(len(data) for name, data in FILES.items() if name.startswith("en/train"))
    assert shown[0] == StageProgress("download", 0, 2, 0, size)
    assert f"2 files of the Hub, {size:,} bytes" in report.notes
    convert_from("hf", url, tmp_path / "all", options(split="all"))
    assert sorted(numbers(tmp_path / "all")) == [0, 1, 2, 3]
    assert len(server.sent) == 4


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("en/train-*.parquet", [0, 1]),
        ("*/train-00000-*.parquet", [3, 0]),
        ("en/train-{00001..00001}-of-00002.parquet", [1]),
        ("de/train-00000-of-00001.parquet", [3]),
    ],
)
def test_a_pattern_is_the_word_of_the_user(server: HubServer, pattern: str, found: list[int], tmp_path: Path) -> None:
    """Only its files are downloaded."""
    convert_from("hf", f"hf://datasets/owner/name/{pattern}", tmp_path / "set", options())
    assert numbers(tmp_path / "set") == found
    assert len(server.sent) == len(found)
