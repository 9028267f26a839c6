"""How does each kind of store speak? S3, the XML interface of Google Cloud Storage, and a plain web server.

A flavour checks who asks, reads conditions, and writes errors. The rest is the same for all: `service`.
"""

from __future__ import annotations

import hmac
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final
from xml.sax.saxutils import escape

from tests.tools.objects.answers import Answer, answer
from tests.tools.objects.signature import Keys, Signed, refusal

Allowed = Callable[[str | None], bool]
"""Whether a write may happen where an object has this ETag now; None: where there is no object."""

_MESSAGES: Final = {
    "NoSuchKey": "The specified key does not exist.",
    "NoSuchBucket": "The specified bucket does not exist",
    "PreconditionFailed": "At least one of the pre-conditions you specified did not hold",
    "InvalidRange": "The requested range is not satisfiable",
    "SlowDown": "Please reduce your request rate.",
    "ExpiredToken": "The provided token has expired.",
    "SignatureDoesNotMatch": "The request signature we calculated does not match the signature you provided.",
}


class Flavour(ABC):
    """What the stores differ in."""

    has_buckets = True
    """The first part of a path is a bucket. A bucket can be listed, and objects uploaded in parts."""
    generation_header = ""
    """The header that numbers the contents of a key; empty: there is none."""

    @abstractmethod
    def error(self, status: int, code: str, key: str) -> Answer:
        """The answer that something is wrong; S3's code says what."""

    @abstractmethod
    def refusal(self, request: Signed) -> tuple[int, str] | None:
        """Status and code for one who may not ask; None: all is well."""

    @abstractmethod
    def expired(self) -> tuple[int, str]:
        """Status and code for an expired token."""

    @abstractmethod
    def options(self, url: str) -> dict[str, Any]:
        """What `obstore.store.from_url` takes beside `s3://bucket` and so on, to reach the store at `url`."""

    def allowed(self, headers: Mapping[str, str]) -> Allowed:
        """Under which condition a write may happen, as its headers say."""
        none_match, match = headers.get("if-none-match"), headers.get("if-match")
        if none_match == "*":
            return lambda now: now is None
        if match is not None:
            return lambda now: now == match
        return lambda _: True


@dataclass(frozen=True)
class S3(Flavour):
    """Amazon S3, the bucket in the path. With `keys`, each request must be signed (SigV4); without, none is checked."""

    keys: Keys | None = None

    def error(self, status: int, code: str, key: str) -> Answer:
        """See `Flavour`."""
        return _xml_error(status, code, key)

    def refusal(self, request: Signed) -> tuple[int, str] | None:
        """See `Flavour`."""
        return None if self.keys is None else refusal(request, self.keys, datetime.now(UTC))

    def expired(self) -> tuple[int, str]:
        """See `Flavour`."""
        return 400, "ExpiredToken"

    def options(self, url: str) -> dict[str, Any]:
        """See `Flavour`."""
        base = {"endpoint": url, "region": "us-east-1", "client_options": {"allow_http": True}}
        if self.keys is None:
            return {**base, "skip_signature": True}
        token = {} if self.keys.token is None else {"session_token": self.keys.token}
        return {**base, "access_key_id": self.keys.access, "secret_access_key": self.keys.secret, **token}


@dataclass(frozen=True)
class _Bearer(Flavour):
    token: str | None = None

    def refusal(self, request: Signed) -> tuple[int, str] | None:
        """See `Flavour`."""
        if self.token is None:
            return None
        given = request.headers.get("authorization", "").encode()
        return None if hmac.compare_digest(given, f"Bearer {self.token}".encode()) else (401, "AuthenticationRequired")

    def expired(self) -> tuple[int, str]:
        """See `Flavour`."""
        return 401, "AuthenticationRequired"


@dataclass(frozen=True)
class Gcs(_Bearer):
    """Google Cloud Storage, XML interface. With `token`, each request must bear it; without, none is checked."""

    generation_header = "x-goog-generation"

    def error(self, status: int, code: str, key: str) -> Answer:
        """See `Flavour`."""
        return _xml_error(status, code, key)

    def allowed(self, headers: Mapping[str, str]) -> Allowed:
        """See `Flavour`."""
        if headers.get("x-goog-if-generation-match") == "0":
            return lambda now: now is None
        return super().allowed(headers)

    def options(self, url: str) -> dict[str, Any]:
        """See `Flavour`."""
        options: dict[str, Any] = {"client_options": {"allow_http": True}}
        if self.token is None:
            account = {"gcs_base_url": url, "disable_oauth": True, "client_email": "", "private_key": ""}
            return {**options, "service_account_key": json.dumps({**account, "private_key_id": ""})}
        bearer = {"token": self.token, "expires_at": None}
        return {**options, "base_url": url, "credential_provider": lambda: bearer}


@dataclass(frozen=True)
class Http(_Bearer):
    """A plain web server: GET, HEAD and PUT of files, no buckets, no list. With `token`, each request must bear it."""

    has_buckets = False

    def error(self, status: int, code: str, key: str) -> Answer:
        """See `Flavour`."""
        return answer(status, {"Content-Type": "text/plain"}, f"{status} {code}: /{key}\n".encode())

    def options(self, url: str) -> dict[str, Any]:
        """See `Flavour`."""
        headers = {} if self.token is None else {"default_headers": {"Authorization": f"Bearer {self.token}"}}
        return {"client_options": {"allow_http": url.startswith("http:"), **headers}}


def _xml_error(status: int, code: str, key: str) -> Answer:
    text = (
        f"<Code>{code}</Code><Message>{escape(_MESSAGES.get(code, code))}</Message><Resource>/{escape(key)}</Resource>"
    )
    return xml(status, f"<Error>{text}<RequestId>0</RequestId></Error>")


def xml(status: int, text: str) -> Answer:
    """An answer that is an XML document."""
    body = f'<?xml version="1.0" encoding="UTF-8"?>\n{text}'.encode("utf-8", "replace")
    return answer(status, {"Content-Type": "application/xml"}, body)
