"""The reason, in words and without secrets, why a request to a store failed."""

from __future__ import annotations

import errno
import re
from typing import Final

from brand.errors import UsageError
from brand.printable import printable
from brand.stores.url import Url

_QUERY: Final = re.compile(r"(https?://[^\s?\"')]+)\?[^\s\"')]*")
_USER: Final = re.compile(r"://[^/@\s]+@")
_CODE: Final = re.compile(r"<Code>([A-Za-z0-9]{1,60})</Code>")
_STATUS: Final = re.compile(r"status code: (\d{3}[A-Za-z ]{0,40})")
_MOST: Final = 300

_REFUSED: Final = (
    "the credentials are wrong or have expired: renew them and run the command again, it continues from its checkpoint"
)
_CODES: Final = {
    "AuthenticationFailed": _REFUSED,
    "AuthenticationRequired": _REFUSED,
    "ExpiredToken": (
        "the credentials have expired: renew them and run the command again, it continues from its checkpoint"
    ),
    "InvalidAccessKeyId": "the access key is unknown to the store",
    "SignatureDoesNotMatch": "the secret key is wrong, or a proxy has changed the request",
    "RequestTimeTooSkewed": "the clock of this machine is wrong: set it, for example with NTP",
    "NoSuchBucket": "there is no such bucket",
    "AccessDenied": "these credentials do not permit this request",
    "PermanentRedirect": "the bucket is in another region: set AWS_REGION to the region of the bucket",
    "AuthorizationHeaderMalformed": "the bucket is in another region: set AWS_REGION to the region of the bucket",
    "InvalidRange": "the object ends before this range: it was replaced, or the index is of another data set",
}
"""Error codes of stores that a user can act on."""

_NUMBERS: Final = {"InvalidRange": errno.ENODATA, "ExpiredToken": errno.EACCES}
"""Error numbers of codes that do not mean a fault of the store."""

_EXPIRED: Final = ("ExpiredToken", "TokenRefreshRequired", "AuthenticationFailed")
"""Codes of S3 and Azure for credentials that were valid."""

_HINTS: Final = (
    ("redirect without LOCATION", _CODES["PermanentRedirect"]),
    ("tcp connect error", "no connection could be made: check host, port, network and proxy"),
    ("dns error", "the name of the host is not known: check it, and the network"),
    ("error trying to connect", "no connection could be made: check host, port, network and proxy"),
    ("operation timed out", "the store did not answer in time"),
    ("Token", "no credentials were found in the places that the provider's tools use"),
    ("credential", "no credentials were found in the places that the provider's tools use"),
)


def reason_of(error: BaseException, url: str = "") -> str:
    """Return why a request about `url` failed, in one line: advice, and the message of the store or the library."""
    # The name of an object may hold the words of a cause, such as "Token".
    name = url.partition("://")[2].partition("/")[2]
    whole = str(error).replace(name, "") if name else str(error)
    code, status = _CODE.search(whole), _STATUS.search(whole)
    said = without_secrets(str(error).partition("Debug source")[0])
    if code is not None:
        told = _CODES.get(code[1], f"the store answers {code[1]}")
        return told if status is None else f"{told} ({status[1].strip()})"
    for part, told in _HINTS:
        if part in whole:
            return f"{told} ({said})"
    return said


def is_expired(error: BaseException) -> bool:
    """Return whether a store has refused a request because the credentials have expired, or may have."""
    text = str(error)
    code, status = _CODE.search(text), _STATUS.search(text)
    if code is not None and code[1] in _EXPIRED:
        return True
    # 401 is how GCS and Azure refuse an old token; the answer to a HEAD has no code.
    refused = ("401",) if code is not None else ("400", "401", "403")
    return type(error).__name__ == "UnauthenticatedError" or (status is not None and status[1][:3] in refused)


def without_secrets(text: str) -> str:
    """Return a text of another program in one line, at most 300 characters, without queries and users of URLs."""
    text = _USER.sub("://", _QUERY.sub(r"\1", text))
    return printable(" ".join(text.split()))[:_MOST]


def failed(error: BaseException, url: str) -> OSError:
    """Return the OSError for a failed request about `url`; its `strerror` is the reason, its `filename` the URL."""
    number = errno.EIO
    code = _CODE.search(str(error))
    if code is not None and code[1] == "NoSuchBucket":
        return OSError(errno.ENODEV, _CODES["NoSuchBucket"], url)
    if isinstance(error, FileNotFoundError):
        return FileNotFoundError(errno.ENOENT, "there is no such object", url)
    kind = type(error).__name__
    if code is not None:
        number = _NUMBERS.get(code[1], number)
    if kind in ("PermissionDeniedError", "UnauthenticatedError") or isinstance(error, PermissionError):
        number = errno.EACCES
    return OSError(number, reason_of(error, url), url)


def replaced(url: str) -> OSError:
    return OSError(errno.ESTALE, "the object was replaced while it was in use: open the data set again", url)


def too_long(url: str, most: int) -> OSError:
    return OSError(errno.EFBIG, f"the store sends more than the {most:,} bytes that were asked for", url)


def too_short(url: str, offset: int, size: int, found: int) -> OSError:
    """Return the error for an object that ends within a range."""
    what = f"the store has only {found:,} of the {size:,} bytes from {offset:,} on: the object was cut or replaced"
    return OSError(errno.ENODATA, what, url)


def missing(url: Url, package: str, install: str) -> UsageError:
    """Return the error for a store whose library is not installed."""
    return UsageError(f"{url} needs {package}, which is not installed: pip install {install}")
