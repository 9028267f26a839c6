"""A client of one request, on the standard library: the slow and obvious one. Nothing in it repeats or repairs."""

from __future__ import annotations

import hashlib
import http.client
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from urllib.parse import parse_qsl, unquote, urlsplit

from tests.tools.objects.signature import Keys, Signed, signature_of

LIMIT_S = 60.0


@dataclass(frozen=True)
class Told:
    """What a store has answered."""

    status: int
    headers: dict[str, str]
    """By names in small letters."""
    body: bytes
    broken: type[Exception] | None = None
    """How the connection ended before the body did."""

    @property
    def etag(self) -> str:
        return self.headers["etag"]


def ask(
    url: str,
    method: str,
    target: str,
    *,
    body: bytes = b"",
    headers: Mapping[str, str] | None = None,
    keys: Keys | None = None,
) -> Told:
    """Ask for `target`, signed where there are keys, and read what comes."""
    named = dict(headers or {})
    place = urlsplit(url)
    assert place.hostname is not None
    if keys is not None:
        named |= signed(method, target, place.netloc, named, body, keys)
    connection = http.client.HTTPConnection(place.hostname, place.port, timeout=LIMIT_S)
    try:
        connection.request(method, target, body or None, named)
        response = connection.getresponse()
        got = b""
        broken: type[Exception] | None = None
        try:
            while data := response.read1(1 << 16):
                got += data
            if response.length:
                broken = http.client.IncompleteRead
        except ConnectionError as fault:
            broken = type(fault)
        return Told(response.status, {name.lower(): value for name, value in response.getheaders()}, got, broken)
    finally:
        connection.close()


def signed(
    method: str, target: str, host: str, headers: dict[str, str], body: bytes, keys: Keys, now: datetime | None = None
) -> dict[str, str]:
    """The headers that sign a request; all headers that are there are covered."""
    path, _, query = target.partition("?")
    covered = {name.lower(): value for name, value in headers.items()}
    covered |= {
        "host": host,
        "x-amz-content-sha256": hashlib.sha256(body).hexdigest(),
        "x-amz-date": (now or datetime.now(UTC)).strftime("%Y%m%dT%H%M%SZ"),
    }
    if keys.token is not None:
        covered["x-amz-security-token"] = keys.token
    names = sorted(covered)
    request = Signed(method, unquote(path), tuple(parse_qsl(query, keep_blank_values=True)), covered)
    scope = f"{keys.access}/{covered['x-amz-date'][:8]}/us-east-1/s3/aws4_request"
    signature = signature_of(request, keys, "us-east-1", names)
    how = f"AWS4-HMAC-SHA256 Credential={scope}, SignedHeaders={';'.join(names)}, Signature={signature}"
    return {**{name: value for name, value in covered.items() if name.startswith("x-amz-")}, "Authorization": how}
