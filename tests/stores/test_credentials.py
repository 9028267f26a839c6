"""Credentials that expire while a store is in use: new ones are looked for, and a training goes on."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from json import dumps
from pathlib import Path
from typing import Any

import pytest

from brand.errors import ServerError
from brand.stores import cloud
from brand.stores.opening import open_store
from brand.testing.node import running_server
from brand.torch import BrandDataset, BrandLoader, BrandSampler
from tests.tools.objects import S3, Denied, Fault, Faults, ObjectStore
from tests.tools.objects.signature import Signed
from tests.torch.support import indices_of, make_samples, make_set

URL, COUNT = "s3://bucket/set.brand", 200


@dataclass(frozen=True)
class TokenS3(S3):
    """S3 that takes only the newest session token; an older one has expired."""

    newest: list[str] = field(default_factory=lambda: ["token-1"])
    status: int = 400
    code: str = "ExpiredToken"

    def refusal(self, request: Signed) -> tuple[int, str] | None:
        """See `Flavour`."""
        given = request.headers.get("x-amz-security-token")
        return None if given == self.newest[-1] else (self.status, self.code)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """200 samples in chunks of twenty."""
    return make_set(tmp_path_factory.mktemp("sets") / "set.brand", make_samples(COUNT, 300), 20)


@contextmanager
def opened(flavour: TokenS3, folder: Path, tmp_path: Path, patch: pytest.MonkeyPatch) -> Iterator[ObjectStore]:
    """A store with the data set; its address and a cache folder are in the environment, and no credentials."""
    with ObjectStore(flavour=flavour) as store:
        store.folder.make_bucket("bucket")
        shutil.copytree(folder, store.folder.root / "bucket" / "set.brand")
        patch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        patch.setenv("AWS_ENDPOINT_URL", store.url)
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
            patch.delenv(name, raising=False)
        yield store


class ProfileFile:
    """The file of credentials of a user, which another program renews."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self._path = folder / "credentials"
        self.write("token-1")
        patch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(self._path))
        patch.setenv("AWS_CONFIG_FILE", str(folder / "none"))

    def write(self, token: str) -> None:
        """Write new credentials."""
        pairs = {"aws_access_key_id": "key", "aws_secret_access_key": "secret", "aws_session_token": token}
        self._path.write_text("\n".join(["[default]", *(f"{name} = {value}" for name, value in pairs.items())]))


def read(store: Any) -> bytes:
    """The beginning of the manifest, by a range."""
    return b"".join(bytes(piece) for piece in store.pieces("brand.json", 0, 20))


@pytest.mark.parametrize(("status", "code"), [(400, "ExpiredToken"), (403, "ExpiredToken"), (401, "Unauthorized")])
def test_a_profile_that_is_renewed_on_disk(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int, code: str
) -> None:
    """Its file is read again after the first refusal; each kind of request goes on."""
    flavour = TokenS3(status=status, code=code)
    monkeypatch.setattr(cloud, "_RENEW_S", 0.0)
    with opened(flavour, folder, tmp_path, monkeypatch) as served:
        profile = ProfileFile(tmp_path, monkeypatch)
        store = open_store(URL)
        begin = read(store)
        asks: list[Callable[[], object]] = [
            lambda: read(store),
            lambda: store.read("brand.json", 1 << 20),
            lambda: store.entry("brand.json"),
            lambda: list(store.entries("chunks")),
            lambda: store.write("other", b"data", new=False),
        ]
        for number, ask in enumerate(asks, 2):
            flavour.newest.append(f"token-{number}")
            profile.write(f"token-{number}")
            served.requests.clear()
            ask()
            assert next(request.status for request in served.requests) == status
            assert [request.status for request in served.requests][-1] in (200, 206)
        assert read(store) == begin


def test_credentials_that_nobody_renews(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Are looked for once, not at each request, and the error says what to do."""
    flavour = TokenS3()
    with opened(flavour, folder, tmp_path, monkeypatch) as served:
        ProfileFile(tmp_path, monkeypatch)
        store = open_store(URL)
        read(store)
        flavour.newest.append("another")
        served.requests.clear()
        for _ in range(3):
            with pytest.raises(OSError, match="the credentials have expired: renew them"):
                read(store)
        assert len(served.requests) == 4


@pytest.mark.slow
def test_a_training_goes_on_with_new_credentials(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They expire in mid-epoch, twice, and the first look for new ones is too early: the epoch is whole, in its order.

    Without new ones the training ends with the reason.
    """
    flavour = TokenS3()
    monkeypatch.setattr(cloud, "_RENEW_S", 0.0)
    with opened(flavour, folder, tmp_path, monkeypatch):
        profile = ProfileFile(tmp_path, monkeypatch)
        with running_server(URL, memory=0.2) as server:
            data = BrandDataset(URL, server=server.address, fields=("index",))
            loader = BrandLoader(data, 16, sampler=BrandSampler(data, seed=2))
            whole = indices_of(loader)
            assert sorted(whole) == list(range(COUNT))
            sampler = BrandSampler(data, seed=2)
            sampler.set_epoch(0)
            found: list[int] = []
            for number, batch in enumerate(BrandLoader(data, 16, sampler=sampler)):
                found += indices_of([batch])
                if number in (2, 6):
                    flavour.newest.append(f"token after {number}")
                    profile.write(flavour.newest[-1])
            assert found == whole
            flavour.newest.append("nobody has it")
            with pytest.raises(ServerError, match=r"s3://bucket/set\.brand/.*have expired: renew") as caught:
                indices_of(loader)
            assert "chmod" not in str(caught.value), "the advice for files"


def test_a_clock_that_is_set_right_again(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that the store finds too old or new is repeated for some seconds; then the error names the clock."""
    skewed = Fault(Denied(403, "RequestTimeTooSkewed"), only=range(2, 4))
    with opened(TokenS3(), folder, tmp_path, monkeypatch) as served:
        ProfileFile(tmp_path, monkeypatch)
        store = open_store(URL)
        served.faults = Faults(skewed)
        assert read(store) == read(store)
        assert [request.status for request in served.requests].count(403) == 2
        monkeypatch.setattr(cloud, "_PAUSES_S", (0.01, 0.01))
        served.faults = Faults(replace(skewed, only=None))
        with pytest.raises(OSError, match="the clock of this machine is wrong: set it"):
            read(store)


class RoleSource(BaseHTTPRequestHandler):
    """The address at which a container gets the credentials of its role."""

    flavour: TokenS3
    minutes, asked = 60, 0
    fails: frozenset[int] = frozenset()

    def do_GET(self) -> None:
        """Answer with the newest token."""
        type(self).asked += 1
        if self.asked in self.fails:
            self.send_error(500)
            return
        until = datetime.now(UTC) + timedelta(minutes=self.minutes)
        pairs = {"AccessKeyId": "key", "SecretAccessKey": "secret", "Token": self.flavour.newest[-1]}
        body = dumps(pairs | {"Expiration": until.strftime("%Y-%m-%dT%H:%M:%SZ")}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.mark.parametrize("minutes", [60, 4])
def test_a_role_whose_token_ends_early_or_whose_source_fails_once(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, minutes: int
) -> None:
    """The source is asked again, also if it has said that the token is valid for an hour."""
    flavour = TokenS3()
    monkeypatch.setattr(cloud, "_RENEW_S", 0.0)
    role = type("OneRole", (RoleSource,), {"flavour": flavour, "minutes": minutes, "fails": frozenset({2})})
    source = ThreadingHTTPServer(("127.0.0.1", 0), role)
    thread = threading.Thread(target=source.serve_forever, daemon=True)
    thread.start()
    try:
        with opened(flavour, folder, tmp_path, monkeypatch):
            monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"http://127.0.0.1:{source.server_port}/role")
            (tmp_path / "token").write_text("secret")
            monkeypatch.setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", str(tmp_path / "token"))
            store = open_store(URL)
            begin = read(store)
            for number in range(2, 5):
                flavour.newest.append(f"token-{number}")
                assert read(store) == begin
    finally:
        source.shutdown()
        source.server_close()
        thread.join()


class TokenStore(BaseHTTPRequestHandler):
    """Objects of 20 bytes for the bearer of the newest token, which the metadata service of a machine gives."""

    newest: list[str]
    code: str

    def do_GET(self) -> None:
        """Give a token, or 20 bytes, or refuse."""
        status, body = 401, f"<Error><Code>{self.code}</Code><Message>no</Message></Error>".encode()
        if "token" in self.path:
            token = {"access_token": self.newest[-1], "expires_in": 3599, "expires_on": "4102444800"}
            status, body = 200, dumps(token | {"token_type": "Bearer", "resource": "storage"}).encode()
        elif self.headers.get("Authorization") == f"Bearer {self.newest[-1]}":
            status, body = 206, bytes(20)
        self.send_response(status)
        more = {"ETag": '"1"', "Last-Modified": "Sat, 28 Nov 2026 05:00:00 GMT", "Content-Range": "bytes 0-19/20"}
        for name, value in {"Content-Length": str(len(body)), **(more if status == 206 else {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def serving(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """Host and port of a web server."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def token_service(source: str) -> dict[str, str]:
    """The environment in which this service gives the tokens of Google Cloud and Azure."""
    identity = f"http://{source.replace('127.0.0.1', 'localhost')}/msi/token"
    google = {"GCE_METADATA_HOST": source, "GCE_METADATA_IP": source}
    return google | {"IDENTITY_ENDPOINT": identity, "IDENTITY_HEADER": "secret"}


def store_of_tokens(url: str) -> dict[str, str]:
    """The environment in which objects of Google Cloud and Azure are read from this URL."""
    return {
        "GOOGLE_BASE_URL": url,
        "AZURE_STORAGE_ACCOUNT_NAME": "account",
        "AZURE_STORAGE_ENDPOINT": url,
    }


@pytest.mark.parametrize("scheme", ["gs", "az"])
def test_a_token_of_the_metadata_service_that_ends_early(
    scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Google Cloud and Azure: the service is asked again. Its host is named in the environment only."""
    monkeypatch.setattr(cloud, "_RENEW_S", 0.0)
    monkeypatch.setenv("HOME", str(tmp_path))
    code = {"gs": "AuthenticationRequired", "az": "AuthenticationFailed"}[scheme]
    newest = ["token-1"]
    handler = type("OneStore", (TokenStore,), {"newest": newest, "code": code})
    with serving(handler) as source, serving(handler) as served:
        for name, value in (token_service(source) | store_of_tokens(f"http://{served}")).items():
            if name.startswith("G") == (scheme == "gs"):
                monkeypatch.setenv(name, value)
        store = open_store(f"{scheme}://bucket/set.brand")
        for number in range(2, 5):
            assert read(store) == bytes(20)
            newest.append(f"token-{number}")


@dataclass(frozen=True)
class BearerStore(S3):
    """Google Cloud or Azure, as far as reads need it: each request must bear the newest token."""

    newest: list[str] = field(default_factory=lambda: ["token-1"])
    code: str = ""

    def refusal(self, request: Signed) -> tuple[int, str] | None:
        """See `Flavour`."""
        given = request.headers.get("authorization")
        return None if given == f"Bearer {self.newest[-1]}" else (401, self.code)


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["gs", "az"])
def test_a_training_goes_on_with_new_tokens(
    scheme: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They end in mid-epoch, twice: the epoch is whole, in its order. Without new ones, the reason ends it.

    Once the service gives a new token, the same loader goes on.
    """
    monkeypatch.setattr(cloud, "_RENEW_S", 0.0)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    code = {"gs": "AuthenticationRequired", "az": "AuthenticationFailed"}[scheme]
    given, url = ["token-1"], f"{scheme}://bucket/set.brand"
    flavour = BearerStore(code=code)
    handler = type("OneSource", (TokenStore,), {"newest": given, "code": code})
    with serving(handler) as source, ObjectStore(flavour=flavour) as store:
        store.folder.make_bucket("bucket")
        shutil.copytree(folder, store.folder.root / "bucket" / "set.brand")
        for name, value in (token_service(source) | store_of_tokens(store.url)).items():
            if name.startswith("G") == (scheme == "gs"):
                monkeypatch.setenv(name, value)
        with running_server(url, memory=0.2) as server:
            data = BrandDataset(url, server=server.address, fields=("index",))
            loader = BrandLoader(data, 16, sampler=BrandSampler(data, seed=2))
            whole = indices_of(loader)
            assert sorted(whole) == list(range(COUNT))
            sampler = BrandSampler(data, seed=2)
            sampler.set_epoch(0)
            store.requests.clear()
            found: list[int] = []
            for number, batch in enumerate(BrandLoader(data, 16, sampler=sampler)):
                found += indices_of([batch])
                if number in (2, 6):
                    for tokens in (given, flavour.newest):
                        tokens.append(f"token after {number}")
            assert found == whole
            assert 401 in {request.status for request in store.requests}
            flavour.newest.append("token-9")
            with pytest.raises(ServerError, match=rf"{scheme}://bucket/set\.brand/.*expired: renew") as caught:
                indices_of(loader)
            assert "chmod" not in str(caught.value), "the advice for files"
            given.append("token-9")
            assert sorted(indices_of(loader)) == list(range(COUNT))


def test_a_token_that_nobody_renews_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Azure's signature in the environment."""
    handler = type("OneStore", (TokenStore,), {"newest": ["token-1"], "code": "AuthenticationFailed"})
    with serving(handler) as served:
        monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
        monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", f"http://{served}")
        monkeypatch.setenv("AZURE_STORAGE_SAS_TOKEN", "sv=1&sig=old")
        with pytest.raises(OSError, match="credentials are wrong or have expired: renew them"):
            read(open_store("az://bucket/set.brand"))
