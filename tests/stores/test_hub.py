"""Files of the Hugging Face Hub, on a server that answers as the Hub does."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from brand.errors import UsageError
from brand.stores.opening import open_store
from brand.stores.store import read_all

constants = pytest.importorskip("huggingface_hub.constants")

COMMIT, DATA, TOKEN = "c0ffee" * 6 + "0000", bytes(range(256)) * 1000, "hf_a-secret"


class Hub(ThreadingHTTPServer):
    """Knows one data set with one file, and sends those who read it to `/blob`."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answers)
        self.asked: list[tuple[str, str | None]] = []
        """Paths, and the token that came with each."""


class Answers(BaseHTTPRequestHandler):
    """What the Hub says."""

    def do_GET(self) -> None:
        """Facts about the data set, a redirect to the file, or its bytes."""
        assert isinstance(self.server, Hub)
        self.server.asked.append((self.path, self.headers.get("authorization")))
        if self.path.startswith("/api/datasets/owner/name"):
            self._send(200, json.dumps({"id": "owner/name", "sha": COMMIT, "siblings": []}).encode(), {})
        elif self.path == f"/datasets/owner/name/resolve/{COMMIT}/set.brand/k":
            self._send(302, b"", {"Location": "/blob"})
        elif self.path == "/blob":
            first, last = self.headers["range"].removeprefix("bytes=").split("-")
            part = DATA[int(first) : int(last) + 1]
            self._send(206, part, {"Content-Range": f"bytes {first}-{last}/{len(DATA)}", "ETag": '"1"'})
        else:
            self._send(404, b"", {"X-Error-Code": "RepoNotFound"})

    def _send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name is the library's
        """Say nothing."""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """The Hub of this process."""
    found = Hub()
    thread = threading.Thread(target=found.serve_forever, args=(0.01,))
    thread.start()
    url = f"http://127.0.0.1:{found.server_address[1]}"
    monkeypatch.setattr(constants, "ENDPOINT", url)
    monkeypatch.setattr("huggingface_hub.hf_api.constants.ENDPOINT", url)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    yield found
    found.shutdown()
    thread.join()
    found.server_close()


@pytest.mark.parametrize("revision", ["", "@main"])
def test_a_revision_is_read_as_the_commit_that_it_names(server: Hub, revision: str) -> None:
    """In ranges, with the token of the user."""
    store = open_store(f"hf://datasets/owner/name{revision}/set.brand")
    memory = bytearray(5000)
    read_all(store, [("k", 70, memoryview(memory))])
    assert memory == DATA[70:5070]
    facts, *rest = [asked for asked in server.asked if "owner/name" in asked[0] or asked[0] == "/blob"]
    assert facts[0].startswith("/api/datasets/owner/name" + (revision and "/revision/main"))
    assert [path for path, _ in rest] == [f"/datasets/owner/name/resolve/{COMMIT}/set.brand/k", "/blob"]
    assert rest[0][1] == f"Bearer {TOKEN}"


def test_a_data_set_that_the_hub_does_not_know(server: Hub) -> None:
    """Is named; the token is not."""
    with pytest.raises(UsageError, match="hf://datasets/owner/other: it is not on the Hub") as caught:
        open_store("hf://datasets/owner/other")
    assert TOKEN not in str(caught.value)


@pytest.mark.parametrize("url", ["hf://datasets/owner", "hf://other/owner/name"])
def test_what_names_nothing(url: str) -> None:
    """The message shows how it is written."""
    with pytest.raises(UsageError, match="write hf://datasets/OWNER/NAME/FOLDER"):
        open_store(url)
