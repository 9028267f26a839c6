"""How are objects in S3, Google Cloud Storage, Azure Blob Storage and web servers read and written? Through obstore.

obstore repeats failed requests, with growing pauses, and resumes in the middle of a body that stops. This module sets
its limits, and checks the rest: that a body has exactly the requested bytes, that an object is not replaced, that no
redirect leads to a host that the user has not named, and that no message holds a secret.

Endpoints, regions and credentials are read from the environment, with the variable names of the provider's own tools.
"""

from __future__ import annotations

import errno
import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

from brand.errors import UsageError
from brand.reprs import Reprs
from brand.stores.reasons import failed, is_expired, missing, replaced, too_long, too_short
from brand.stores.store import Entry, Traffic, note_use
from brand.stores.url import Url

PATIENCE_S: Final = 45.0
"""Time for which a failed request is repeated."""
STALL_S: Final = 10.0
"""If a body stops for this time, the connection is cut, and the rest of the body is requested again."""
EAGER_STALL_S: Final = 0.5
"""Like `STALL_S`, for the first tries of a range (`HedgePolicy`)."""
_EAGER_TRIES: Final = 3
_LATEST: Final = 64
"""Number of recent ranges that are considered."""
_MOST_LATE: Final = 8
"""Maximum number of these that may exceed the short timeout."""
_PAUSE: Final = 1000
"""Number of ranges that are then requested with the long timeout."""
_CUT_BODY: Final = "request or response body error"
"""Part of the message of obstore if a connection ended within a body."""
_SKEWED: Final = "RequestTimeTooSkewed"
"""Code of S3 if the clock of this machine differs from its own. A clock that was set is soon set right again."""
_PAUSES_S: Final = (0.1, 0.2, 0.4, 0.8, 1.6, 3.2)
"""Seconds before each repetition of a request with such an error."""
_PASSING: Final = (errno.EIO, errno.ETIMEDOUT)
"""Errors after which an eager range is requested again with the long timeout."""
_CONNECT_S: Final = 10.0
_REQUEST_S: Final = 300.0
"""Maximum time of one request with its body."""
_MOST_TRIES: Final = 1000
"""More tries than fit into `PATIENCE_S`: time limits the tries, not their number."""
_PIECE: Final = 1 << 20
"""Bytes of a piece of a body."""
_PART: Final = 64 << 20
"""Larger objects are written in parts of this many bytes."""
_RENEW_S: Final = 10.0
"""Minimum seconds between two looks for new credentials."""
_LENT: Final = timedelta(minutes=6)
"""Time for which obstore is told that credentials of boto3 are valid: it asks again 5 minutes before the end.

boto3 renews them, but does not say when they expire: it has at least 10 minutes left.
"""
_T = TypeVar("_T")
_PARTS_AT_ONCE: Final = 2
"""Parts of one object that are sent, and in memory, at the same time."""
_THERE: Final = "the object exists already"
_NOWHERE: Final = "http://127.0.0.1:9"
"""A proxy that does not exist: requests to any host that is not excepted fail there. So no redirect leads elsewhere."""
_PROXIES: Final = ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy")
_HOSTS: Final[Mapping[str, tuple[str, ...]]] = {
    "s3": ("amazonaws.com", "amazonaws.com.cn", "169.254.0.0/16", "fd00:ec2::/32"),
    "gs": ("googleapis.com", "metadata.google.internal", "169.254.0.0/16"),
    "az": ("core.windows.net", "login.microsoftonline.com", "169.254.0.0/16"),
}
"""Hosts of a provider: its stores, and its sources of credentials."""
_OWN_CREDENTIALS: Final = (
    "AWS_ACCESS_KEY_ID",
    "AWS_SKIP_SIGNATURE",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)
"""Variables with which obstore finds credentials itself, or needs none."""
_ENDPOINTS: Final = (
    "AWS_ENDPOINT_URL_S3",
    "AWS_ENDPOINT_URL",
    "AWS_ENDPOINT",
    "AZURE_STORAGE_ENDPOINT",
    "AZURE_ENDPOINT",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "IDENTITY_ENDPOINT",
    "AZURE_MSI_ENDPOINT",
    "AZURE_AUTHORITY_HOST",
    "GCE_METADATA_HOST",
    "GCE_METADATA_IP",
)
"""Variables with an address of a store, or of a source of credentials."""


class HedgePolicy(Reprs, shows="_late _pause"):
    """Decides which ranges are first requested with a short timeout (hedged). Any number of threads may use it.

    A store that answers within milliseconds delays one request in some hundreds by seconds. It is much faster to repeat
    such a request at once than to wait for it. If the whole store is slow, repeated requests would only add load: then
    no range is requested with the short timeout for a while.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._late: deque[bool] = deque(maxlen=_LATEST)
        self._pause = 0

    def next(self) -> bool:
        with self._lock:
            eager = not self._pause
            self._pause = max(0, self._pause - 1)
            return eager

    def note(self, *, late: bool) -> None:
        """Record that a range requested with the short timeout has arrived; `late`: it exceeded the timeout."""
        with self._lock:
            self._late.append(late)
            if sum(self._late) > _MOST_LATE:
                self._pause = _PAUSE
                self._late.clear()


class Lists(Protocol):
    """Lists the objects of a web server that does not list them itself. Their contents never change."""

    def entries(self, folder: str) -> Iterator[Entry]:
        """See `Store`."""

    def entry(self, name: str) -> Entry:
        """See `Store`."""

    def pinned(self) -> str:
        """See `Store`."""


def open_cloud(
    url: Url,
    traffic: Traffic,
    patience_s: float | None = None,
    headers: Mapping[str, str] | None = None,
    hosts: tuple[str, ...] = (),
    lists: Lists | None = None,
) -> CloudStore:
    """Return the store of a URL. Raises `UsageError`. Each request sends `headers`; redirects may lead to `hosts`."""
    try:
        from obstore import store as stores
    except ImportError:
        raise missing(url, "obstore", "'brand-data[cloud]'") from None
    options: dict[str, Any] = {
        "connect_timeout": timedelta(seconds=_CONNECT_S),
        "timeout": timedelta(seconds=_REQUEST_S),
        "allow_http": True,  # whether http:// is used depends on the URL or the endpoint that the user gives
    }
    if headers:
        options["default_headers"] = dict(headers)
    # A proxy that the user has set must not be replaced.
    if not any(os.environ.get(name) for name in _PROXIES):
        allowed = {*_HOSTS.get(url.scheme, ()), *_endpoints(url), *hosts}
        options |= {"proxy_url": _NOWHERE, "proxy_excludes": ",".join(sorted(allowed))}
    backoff = {"init_backoff": timedelta(seconds=0.1), "max_backoff": timedelta(seconds=10), "base": 2}
    patience = timedelta(seconds=PATIENCE_S if patience_s is None else patience_s)

    def client(stall_s: float, tries: int) -> Any:
        common: dict[str, Any] = {
            "client_options": {**options, "read_timeout": timedelta(seconds=stall_s)},
            "retry_config": {"max_retries": tries, "retry_timeout": patience, "backoff": backoff},
        }
        match url.scheme:
            case "s3":
                return stores.S3Store(url.host, **_s3(url), **common)
            case "gs":
                return stores.GCSStore(url.host, **common)
            case "az":
                return stores.AzureStore(url.host, **common)
            case _:
                return stores.HTTPStore.from_url(url.root, **common)

    def clients() -> Clients:
        return client(STALL_S, _MOST_TRIES), client(EAGER_STALL_S, _EAGER_TRIES)

    try:
        return CloudStore(url, traffic, clients, lists)
    except UsageError:
        raise
    except Exception as error:  # noqa: BLE001 - the library raises many kinds for options that contradict
        raise UsageError(f"{url}: {failed(error, str(url)).strerror}") from None


Clients = tuple[Any, Any]
"""A store of obstore, and another one for the first tries of ranges."""


class CloudStore(Reprs, shows="url _versions _renewed_s"):
    """A `Store` through stores of obstore. `make` makes them, with the credentials that it finds at the time."""

    def __init__(self, url: Url, traffic: Traffic, make: Callable[[], Clients], lists: Lists | None) -> None:
        self.url, self.traffic, self._make, self._lists = url, traffic, make, lists
        self._clients = make()
        self._renewed_s = -math.inf
        """When credentials were last looked for again."""
        self._eagerness = HedgePolicy()
        self._versions: dict[str, str] = {}
        """The ETag of each object at its first read."""
        self._sizes: dict[str, int] = {}
        """The size of each object, reported with a range of it."""
        self._lock = threading.Lock()

    def read(self, name: str, most: int) -> bytes:
        return self._whole(name, most)[0]

    def fetch(self, name: str, most: int) -> tuple[bytes, str]:
        if self._eagerness.next():
            late = False
            try:
                return self._whole(name, most, eager=True)
            except OSError as error:
                if error.errno not in _PASSING:
                    raise
                late = True
            finally:
                self._eagerness.note(late=late)
        return self._whole(name, most)

    def _whole(self, name: str, most: int, *, eager: bool = False) -> tuple[bytes, str]:
        """Return an object and its ETag."""
        parts, size = [], 0
        with self._asking(name):
            result = self._get(name, {}, eager=eager)
            for part in result.stream(min_chunk_size=_PIECE):
                self.traffic.came(len(part))
                size += len(part)
                if size > most:
                    raise too_long(self.url.child(name), most)
                parts.append(bytes(part))
            mark = "" if self._lists else result.meta.get("e_tag") or ""
        return b"".join(parts), mark

    def pieces(self, name: str, offset: int, size: int) -> Iterator[memoryview]:
        done = 0
        if size and self._eagerness.next():
            late = False
            try:
                for piece in self._pieces(name, offset, size, eager=True):
                    done += len(piece)
                    yield piece
            except OSError as error:
                if error.errno not in _PASSING:
                    raise
                late = True
            self._eagerness.note(late=late)
        if done < size:
            yield from self._pieces(name, offset + done, size - done)

    def _pieces(self, name: str, offset: int, size: int, *, eager: bool = False) -> Iterator[memoryview]:
        """Send one request, with the retries of obstore. Raises OSError."""
        options: dict[str, Any] = {"range": (offset, offset + size)}
        known = self._versions.get(name)
        # With the known ETag, the store itself refuses the read of a replaced object.
        if known is not None:
            options["if_match"] = known
        done = 0
        with self._asking(name):
            result = self._get(name, options, eager=eager)
            self._sizes[name] = int(result.meta["size"])
            self._check_version(name, result.meta.get("e_tag"))
            for part in result.stream(min_chunk_size=_PIECE):
                self.traffic.came(len(part))
                done += len(part)
                if done > size:
                    raise too_long(self.url.child(name), size)
                yield memoryview(part)
        if done < size:
            raise too_short(self.url.child(name), offset, size, done)

    def _get(self, name: str, options: dict[str, Any], *, eager: bool) -> Any:
        """Send a request until its answer is whole.

        obstore repeats a request whose body is cut, but not if it is the body of an error: a 404 that is cut would be
        neither an answer nor repeated.
        """

        def get(client: Any) -> Any:
            self.traffic.asked()
            return client.get(self.url.key(name), options=options)

        return self._do(get, eager=eager, passing=(_CUT_BODY, _SKEWED))

    def _do(self, request: Callable[[Any], _T], *, eager: bool = False, passing: tuple[str, ...] = (_SKEWED,)) -> _T:
        """Send a request: again after a pause if its error has one of the texts `passing`, or with new credentials."""
        pauses_s, renewed = iter(_PAUSES_S), False
        while True:
            clients = self._clients
            try:
                return request(clients[eager])
            except Exception as error:
                if not renewed and is_expired(error) and self._renew(clients):
                    renewed = True
                    continue
                pause_s = next(pauses_s, None) if any(text in str(error) for text in passing) else None
                if pause_s is None:
                    raise
            time.sleep(pause_s)

    def _renew(self, expired: Clients) -> bool:
        """Look for credentials again, in files that may have changed. Return whether that was done since `expired`."""
        with self._lock:
            if self._clients is not expired:
                return True  # by another thread
            now_s = time.monotonic()
            if now_s - self._renewed_s < _RENEW_S or self.url.scheme in ("http", "https"):  # these have none to find
                return False
            self._renewed_s = now_s
            try:
                self._clients = self._make()
            except Exception:  # noqa: BLE001 - as in `open_cloud`; the error of the request says more
                return False
        return True

    def size(self, name: str) -> int | None:
        return self._sizes.get(name)

    def write(self, name: str, data: bytes | Path, *, new: bool) -> None:
        size = len(data) if isinstance(data, bytes) else data.stat().st_size
        parts = {"use_multipart": size > _PART, "chunk_size": _PART, "max_concurrency": _PARTS_AT_ONCE}
        with self._asking(name):
            if new and self.url.scheme in ("http", "https"):  # a web server cannot write create-only, so check first
                with suppress(FileNotFoundError):
                    self._do(lambda client: client.head(self.url.key(name)))
                    raise FileExistsError(errno.EEXIST, _THERE, self.url.child(name))
                new = False
            mode = "create" if new else "overwrite"
            self._do(lambda client: client.put(self.url.key(name), data, mode=mode, **parts))
        with self._lock:
            self._sizes.pop(name, None)
            self._versions.pop(name, None)  # this process replaces the object itself, so a new ETag is no error

    def entries(self, folder: str) -> Iterator[Entry]:
        start = len(self.url.key(""))
        with self._asking(folder):
            if self._lists is not None:
                yield from self._lists.entries(folder)
                return
            last: str | None = None
            while True:
                clients = self._clients
                try:
                    for some in clients[0].list(self.url.key(folder) + "/", offset=last):
                        for each in some:
                            last = each["path"]
                            yield Entry(each["path"][start:], each["size"], each.get("e_tag") or "")
                    return
                except Exception as error:
                    if not is_expired(error) or not self._renew(clients):
                        raise

    def entry(self, name: str) -> Entry:
        with self._asking(name):
            self.traffic.asked()
            if self._lists is not None:
                return self._lists.entry(name)
            found = self._do(lambda client: client.head(self.url.key(name)))
        return Entry(name, found["size"], found.get("e_tag") or "")

    def pinned(self) -> str:
        return self._lists.pinned() if self._lists else str(self.url)

    def _check_version(self, name: str, found: str | None) -> None:
        if found is None:
            return
        with self._lock:
            if self._versions.setdefault(name, found) != found:
                raise replaced(self.url.child(name))

    def _asking(self, name: str) -> _RequestErrors:
        return _RequestErrors(self.url.child(name))


class _RequestErrors:
    """Turns the errors of obstore into OSErrors during a request."""

    def __init__(self, url: str) -> None:
        self._url = url

    def __enter__(self) -> None:
        note_use()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None or isinstance(error, GeneratorExit | KeyboardInterrupt | SystemExit):
            return
        if isinstance(error, OSError) and error.filename == self._url:
            return
        name = type(error).__name__
        if name == "PreconditionError":
            raise replaced(self._url) from None
        if name == "AlreadyExistsError":
            raise FileExistsError(errno.EEXIST, _THERE, self._url) from None
        raise failed(error, self._url) from None


def _endpoints(url: Url) -> set[str]:
    """Return hosts that the user or the platform names: in the URL, or as an address in the environment."""
    from urllib.parse import urlsplit

    found = {url.host.rpartition(":")[0] or url.host} if url.scheme in ("http", "https") else set()
    for name in _ENDPOINTS:
        address = os.environ.get(name, "")
        host = urlsplit(address if "://" in address else f"//{address}").hostname
        if host:
            found.add(host)
    return found


def _s3(url: Url) -> dict[str, Any]:
    """Return options of an S3 store that obstore does not take from the environment. Raises `UsageError`."""
    found: dict[str, Any] = {"checksum_algorithm": "SHA256"}  # so the store verifies the bytes that it receives
    given = os.environ
    if "AWS_REGION" not in given and "AWS_DEFAULT_REGION" not in given:
        found["region"] = "us-east-1"
    if any(name in given for name in _OWN_CREDENTIALS) or not _has_profiles():
        return found
    try:
        from boto3.session import Session  # type: ignore[import-untyped,unused-ignore]
        from obstore.auth.boto3 import Boto3CredentialProvider
    except ImportError:
        if "AWS_PROFILE" in given:
            raise missing(url, "boto3, as AWS_PROFILE is set,", "boto3") from None
        return found
    session = Session()
    if session.get_credentials() is not None:
        found["credential_provider"] = Boto3CredentialProvider(session, ttl=_LENT)
        if session.region_name:
            found["region"] = session.region_name
    return found


def _has_profiles() -> bool:
    """Return whether the user has credential files of the AWS command line. Only boto3 reads these."""
    named = [Path(os.environ[n]) for n in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE") if n in os.environ]
    usual = [Path.home() / ".aws" / name for name in ("credentials", "config")]
    return "AWS_PROFILE" in os.environ or any(path.exists() for path in named + usual)
