"""Did the one who asks know the secret? AWS Signature Version 4 of a request header, as S3 checks it. Pure.

https://docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-header-based-auth.html
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final
from urllib.parse import quote

UNSIGNED: Final = "UNSIGNED-PAYLOAD"
_ALGORITHM: Final = "AWS4-HMAC-SHA256"
_SKEW_S: Final = 900
_AUTHORIZATION: Final = re.compile(
    r"AWS4-HMAC-SHA256 +Credential=([^/,]+)/(\d{8})/([^/,]+)/s3/aws4_request, *"
    r"SignedHeaders=([^,]+), *Signature=([0-9a-f]{64})"
)


@dataclass(frozen=True, slots=True)
class Keys:
    """Credentials for S3. `token` is the session token of temporary ones."""

    access: str
    secret: str
    token: str | None = None

    def __repr__(self) -> str:
        return f"Keys({self.access!r})"


@dataclass(frozen=True, slots=True)
class Signed:
    """What a signature covers, as it came."""

    method: str
    path: str
    """Decoded, with its first slash."""
    query: tuple[tuple[str, str], ...]
    headers: Mapping[str, str]
    """By names in small letters."""


def refusal(request: Signed, keys: Keys, now: datetime) -> tuple[int, str] | None:
    """Status and S3's code of a request that `keys` did not sign within 15 minutes of `now`; None: they did."""
    headers = request.headers
    if "authorization" not in headers:
        return 403, "AccessDenied"
    found = _AUTHORIZATION.fullmatch(headers["authorization"])
    if found is None:
        return 400, "AuthorizationHeaderMalformed"
    access, date, region, names, signature = found.groups()
    if access != keys.access:
        return 403, "InvalidAccessKeyId"
    if headers.get("x-amz-security-token") != keys.token:
        return 400, "InvalidToken"
    moment = _moment(headers.get("x-amz-date", ""))
    if moment is None or not headers["x-amz-date"].startswith(date) or "host" not in names.split(";"):
        return 403, "AccessDenied"
    if abs((now - moment).total_seconds()) > _SKEW_S:
        return 403, "RequestTimeTooSkewed"
    expected = signature_of(request, keys, region, names.split(";"))
    return None if hmac.compare_digest(expected, signature) else (403, "SignatureDoesNotMatch")


def signature_of(request: Signed, keys: Keys, region: str, names: Iterable[str]) -> str:
    """The signature that the owner of `keys` puts on a request with an x-amz-date, over the headers of these names."""
    names = list(names)
    moment = request.headers["x-amz-date"]
    scope = f"{moment[:8]}/{region}/s3/aws4_request"
    canonical = "\n".join(
        (
            request.method,
            quote(request.path, safe="/-_.~"),
            "&".join(f"{key}={value}" for key, value in sorted(map(_encoded, request.query))),
            *(f"{name}:{' '.join(request.headers.get(name, '').split())}" for name in names),
            "",
            ";".join(names),
            request.headers.get("x-amz-content-sha256", UNSIGNED),
        )
    )
    key = f"AWS4{keys.secret}".encode()
    for part in (
        *scope.split("/"),
        "\n".join((_ALGORITHM, moment, scope, hashlib.sha256(canonical.encode()).hexdigest())),
    ):
        key = hmac.digest(key, part.encode(), "sha256")
    return key.hex()


def _encoded(pair: tuple[str, str]) -> tuple[str, str]:
    return quote(pair[0], safe="-_.~"), quote(pair[1], safe="-_.~")


def _moment(text: str) -> datetime | None:
    try:
        return datetime.strptime(text, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    except ValueError:
        return None
