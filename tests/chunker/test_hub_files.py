"""Data sets of the Hub: files are listed and refused by their names before anything is downloaded."""

from __future__ import annotations

import hashlib
import io
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from brand.chunker import convert_from
from brand.chunker.plan.report import StageProgress
from brand.errors import UsageError
from brand.storage.dataset.dataset import StoredDataSet
from tests.support import options

constants = pytest.importorskip("huggingface_hub.constants")
pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

COMMIT = "c0ffee" * 6 + "0000"


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


class Hub(ThreadingHTTPServer):
    """Knows one data set."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answers)
        self.sent: list[str] = []
        """Files that were downloaded."""


class Answers(BaseHTTPRequestHandler):
    """What the Hub says."""

    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        """Facts about a file."""
        self.do_GET()

    def do_GET(self) -> None:
        """The list of files, facts about the data set, or a file."""
        assert isinstance(self.server, Hub)
        path = self.path.partition("?")[0]
        name = path.removeprefix(f"/datasets/owner/name/resolve/{COMMIT}/")
        if path.startswith("/api/datasets/owner/name/tree/"):
            found = [
                {"type": "file", "path": name, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
                for name, data in FILES.items()
            ]
            self._send(json.dumps(found).encode(), {})
        elif path.startswith("/api/datasets/owner/name"):
            told = {"id": "owner/name", "sha": COMMIT, "siblings": [{"rfilename": name} for name in FILES]}
            self._send(json.dumps(told).encode(), {})
        elif name in FILES:
            if self.command == "GET":
                self.server.sent.append(name)
            facts = {"X-Repo-Commit": COMMIT, "ETag": f'"{hashlib.sha1(FILES[name]).hexdigest()}"'}
            self._send(FILES[name], facts)
        else:
            self.send_error(404)

    def _send(self, data: bytes, headers: dict[str, str]) -> None:
        self.send_response(200)
        for name, value in {"Content-Length": str(len(data)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name is the library's
        """Say nothing."""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    """The Hub of this process, with an empty cache."""
    found = Hub()
    thread = threading.Thread(target=found.serve_forever, args=(0.01,))
    thread.start()
    url = f"http://127.0.0.1:{found.server_address[1]}"
    monkeypatch.setattr(constants, "ENDPOINT", url)
    monkeypatch.setattr("huggingface_hub.hf_api.constants.ENDPOINT", url)
    template = url + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    yield found
    found.shutdown()
    thread.join()
    found.server_close()


def numbers(target: Path) -> list[int]:
    """The numbers in a data set, by index."""
    stored = StoredDataSet(target)
    return [stored.sample(index)["n"] for index in range(len(stored))]


def test_splits_are_refused_before_anything_is_downloaded(server: Hub, tmp_path: Path) -> None:
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
def test_a_pattern_is_the_word_of_the_user(server: Hub, pattern: str, found: list[int], tmp_path: Path) -> None:
    """Only its files are downloaded."""
    convert_from("hf", f"hf://datasets/owner/name/{pattern}", tmp_path / "set", options())
    assert numbers(tmp_path / "set") == found
    assert len(server.sent) == len(found)
