"""A server that answers as the Hugging Face Hub does, with files in memory."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote

import pytest

COMMIT = "c0ffee" * 6 + "0000"


class HubServer(ThreadingHTTPServer):
    """Knows one data set, `owner/name`, and sends those who read a file to another path."""

    def __init__(self, files: Mapping[str, bytes]) -> None:
        super().__init__(("127.0.0.1", 0), _Answers)
        self.files, self.commit = dict(files), COMMIT
        self.sent: list[str] = []
        """Files that were downloaded."""

    def facts(self, name: str) -> dict[str, Any]:
        """The Hub's entry for a file."""
        data = self.files[name]
        return {"type": "file", "path": name, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}


class _Answers(BaseHTTPRequestHandler):
    """What the Hub says."""

    protocol_version = "HTTP/1.1"
    server: HubServer

    def do_HEAD(self) -> None:
        """Facts about a file."""
        self.do_GET()

    def do_POST(self) -> None:
        """Facts about some files."""
        asked = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
        found = [self.server.facts(name) for name in asked["paths"] if name in self.server.files]
        self._send(200, json.dumps(found).encode(), {})

    def do_GET(self) -> None:
        """The list of files, facts about the data set, or a file."""
        hub, path = self.server, unquote(self.path.partition("?")[0])
        begin = f"/datasets/owner/name/resolve/{hub.commit}/"
        if path.startswith("/api/datasets/owner/name/tree/"):
            folder = path.removeprefix("/api/datasets/owner/name/tree/").partition("/")[2]
            inside = [name for name in hub.files if not folder or name.startswith(f"{folder}/")]
            if inside:
                self._send(200, json.dumps([hub.facts(name) for name in inside]).encode(), {})
            else:
                self._send(404, b"", {"X-Error-Code": "EntryNotFound"})
        elif path.startswith("/api/datasets/owner/name"):
            told = {"id": "owner/name", "sha": hub.commit, "siblings": [{"rfilename": name} for name in hub.files]}
            self._send(200, json.dumps(told).encode(), {})
        elif (name := path.removeprefix(begin)) in hub.files and path.startswith(begin):
            facts = {"X-Repo-Commit": hub.commit, "ETag": f'"{hub.facts(name)["oid"]}"'}
            if self.command == "GET" and "huggingface_hub" not in self.headers.get("User-Agent", ""):
                self._send(302, b"", {**facts, "Location": "/blob" + self.path})
            else:
                self._file(name, facts)
        elif (name := path.removeprefix(f"/blob{begin}")) in hub.files:
            self._file(name, {"ETag": '"of another store"'})
        else:
            self._send(404, b"", {"X-Error-Code": "RepoNotFound"})

    def _file(self, name: str, headers: dict[str, str]) -> None:
        data = self.server.files[name]
        if self.command == "GET":
            self.server.sent.append(name)
        if asked := self.headers.get("range"):
            first, last = map(int, asked.removeprefix("bytes=").split("-"))
            part = data[first : last + 1]
            self._send(206, part, {**headers, "Content-Range": f"bytes {first}-{first + len(part) - 1}/{len(data)}"})
        else:
            self._send(200, data, headers)

    def _send(self, status: int, data: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(data)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name is the library's
        """Say nothing."""


@contextmanager
def hub_with(files: Mapping[str, bytes], cache: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    """Run a server, which is the Hub for this process and for those that it starts."""
    constants = pytest.importorskip("huggingface_hub.constants")
    found = HubServer(files)
    thread = threading.Thread(target=found.serve_forever, args=(0.01,))
    thread.start()
    url = f"http://127.0.0.1:{found.server_address[1]}"
    monkeypatch.setenv("HF_ENDPOINT", url)
    monkeypatch.setattr(constants, "ENDPOINT", url)
    monkeypatch.setattr("huggingface_hub.hf_api.constants.ENDPOINT", url)
    template = url + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", cache)
    try:
        yield found
    finally:
        found.shutdown()
        thread.join()
        found.server_close()
