"""Azure Blob Storage, as Azurite has it: Microsoft's own emulator judges what is asked of it."""

from __future__ import annotations

import base64
import hashlib
import hmac
import http.client
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from email.utils import formatdate
from pathlib import Path

import pytest

from brand import pack
from brand.errors import TargetExistsError
from brand.storage.dataset.dataset import StoredDataSet
from brand.stores.opening import open_store
from brand.stores.store import read_all
from tests.storage.support import NOTES
from tests.support import free_port

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("azurite-blob") is None, reason="Azurite is not here: npm install -g azurite"),
]

ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="  # public


@pytest.fixture
def container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URL of a folder in an empty container."""
    port = free_port()
    command = [
        "azurite-blob",
        "--inMemoryPersistence",
        "--skipApiVersionCheck",
        "--disableTelemetry",
        "--blobPort",
        str(port),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=tmp_path) as azurite:
        assert azurite.stdout is not None
        try:
            for line in azurite.stdout:
                if b"successfully listens" in line:
                    break
            make_container(port, "container")
            monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", ACCOUNT)
            monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", KEY)
            monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", f"http://127.0.0.1:{port}/{ACCOUNT}")
            monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
            yield "az://container/set.brand"
        finally:
            azurite.kill()


def make_container(port: int, name: str) -> None:
    """Make a container, with a signed request ("Shared Key" in Azure's pages)."""
    headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2021-12-02"}
    signed = "".join(f"{key}:{value}\n" for key, value in headers.items())
    text = "PUT" + 12 * "\n" + signed + f"/{ACCOUNT}/{ACCOUNT}/{name}\nrestype:container"
    digest = hmac.new(base64.b64decode(KEY), text.encode(), hashlib.sha256).digest()
    headers["Authorization"] = f"SharedKey {ACCOUNT}:{base64.b64encode(digest).decode()}"
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.request("PUT", f"/{ACCOUNT}/{name}?restype=container", headers={**headers, "Content-Length": "0"})
    assert connection.getresponse().status == 201
    connection.close()


def test_a_data_set_is_written_read_and_taken(container: str) -> None:
    """Create-only writes, ranges, lists, versions; a second conversion is refused."""
    pack(NOTES, container, {"text": "str", "number": "int"}, chunk_size=100, compression="zstd", jobs=1)
    data = StoredDataSet(container)
    assert [data.sample(index) for index in (0, 64, 129)] == [NOTES[0], NOTES[64], NOTES[129]]
    with pytest.raises(TargetExistsError):
        pack(NOTES, container, {"text": "str", "number": "int"}, chunk_size=100, compression="none", jobs=1)
    store = open_store(container)
    assert sorted(each[:2] for each in store.entries("chunks")) == [
        (f"chunks/{number:08d}.brand", data.location.chunk_bytes(number)) for number in (0, 1)
    ]
    with pytest.raises(FileExistsError):
        store.write("brand.json", b"other", new=True)
    store.write("k", b"one", new=False)
    memory = bytearray(3)
    read_all(store, [("k", 0, memoryview(memory))])
    open_store(container).write("k", b"two", new=False)
    with pytest.raises(OSError, match="replaced while it was in use"):
        read_all(store, [("k", 0, memoryview(memory))])


def test_a_wrong_key_is_said(container: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And is not shown."""
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", base64.b64encode(b"a-secret" * 8).decode())
    with pytest.raises(OSError, match=re.escape(container)) as caught:
        open_store(container, 1.0).read("k", 10)
    assert base64.b64encode(b"a-secret" * 8).decode() not in str(caught.value)


def test_the_command_line_reads_it(container: str) -> None:
    """From the environment alone."""
    pack(NOTES, container, {"text": "str", "number": "int"}, chunk_size=100, jobs=1)
    command = [sys.executable, "-m", "brand", "verify", container]
    out = subprocess.run(command, capture_output=True, text=True, check=False)
    assert out.returncode == 0, out.stderr
    assert f"{container} is whole: 130 samples" in out.stdout
