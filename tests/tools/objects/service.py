"""What is the right answer to a request? Reads, conditional writes, uploads in parts and lists, of any flavour.

Here nothing goes wrong on purpose, and no socket is read or written: `store` hands a request over with its body in a
file, and sends what comes back.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import formatdate
from functools import cached_property
from typing import Final
from urllib.parse import parse_qsl, unquote_to_bytes
from xml.sax.saxutils import escape

from tests.tools.objects.answers import Answer, FilePiece, answer
from tests.tools.objects.faults import Operation
from tests.tools.objects.flavours import Flavour, xml
from tests.tools.objects.folder import Body, Folder, Found, is_key
from tests.tools.objects.signature import UNSIGNED, Signed

SMALLEST_PART: Final = 5 << 20
"""Of an upload in parts, but for its last one; as in S3."""
_MOST_PARTS: Final = 10_000
_MOST_KEYS: Final = 1000
_MOST_XML: Final = 4 << 20
_RANGE: Final = re.compile(r"bytes=(\d{0,19})-(\d{0,19})")
_PART: Final = re.compile(r"<Part>(.*?)</Part>", re.DOTALL)
_NUMBER: Final = re.compile(r"<PartNumber>\s*(\d{1,5})\s*</PartNumber>")
_ETAG: Final = re.compile(r"<ETag>\s*(?:\"|&quot;)?([0-9a-f]{32})(?:\"|&quot;)?\s*</ETag>")


@dataclass(frozen=True)
class Call:
    """A request as it came, without its body."""

    method: str
    target: str
    """Path and query, encoded."""
    headers: Mapping[str, str]
    """By names in small letters."""
    has_buckets: bool

    @cached_property
    def path(self) -> str | None:
        """The decoded path; None where it is not UTF-8."""
        try:
            return unquote_to_bytes(self.target.partition("?")[0]).decode()
        except UnicodeDecodeError:
            return None

    @cached_property
    def query(self) -> dict[str, str]:
        """The decoded query."""
        return dict(parse_qsl(self.target.partition("?")[2], keep_blank_values=True, errors="replace"))

    @cached_property
    def key(self) -> str:
        """`bucket/name`; with the prefix in place of a name, for a list."""
        path = (self.path or "")[1:]
        return f"{path.rstrip('/')}/{self.query.get('prefix', '')}" if self.operation == "LIST" else path

    @cached_property
    def operation(self) -> Operation:
        """What is asked for."""
        if self.has_buckets:
            of_bucket = "/" not in (self.path or "")[1:].rstrip("/")
            match self.method:
                case "GET" if of_bucket:
                    return "LIST"
                case "PUT" if of_bucket:
                    return "MAKE"
                case "POST" if "uploads" in self.query:
                    return "START"
                case "PUT" if "uploadId" in self.query:
                    return "PART"
                case "POST" if "uploadId" in self.query:
                    return "COMPLETE"
                case "DELETE" if "uploadId" in self.query:
                    return "ABORT"
        match self.method:
            case "GET" | "HEAD" | "PUT":
                return self.method
            case _:
                return "OTHER"

    @property
    def range(self) -> str | None:
        """The Range header, as it came."""
        return self.headers.get("range")


class Service:
    """The answers for the objects of a folder, in a flavour."""

    def __init__(self, folder: Folder, flavour: Flavour) -> None:
        self.folder, self.flavour = folder, flavour

    def refused(self, call: Call) -> Answer | None:
        """The answer to a request that may not be made, or makes no sense; None: all is well."""
        signed = Signed(call.method, call.path or "", tuple(call.query.items()), call.headers)
        refused = self.flavour.refusal(signed)
        if refused is not None:
            return self.flavour.error(*refused, call.key)
        if call.operation == "OTHER":
            return self._error(405, "MethodNotAllowed", call)
        if call.headers.get("x-amz-content-sha256", "").startswith("STREAMING-"):
            return self._error(501, "NotImplemented", call)
        if call.path is None or not is_key(call.key if call.operation != "LIST" else call.path[1:].rstrip("/")):
            return self._error(400, "InvalidURI", call)
        bucket = call.key.partition("/")[0]
        if call.has_buckets and call.operation != "MAKE" and not self.folder.is_bucket(bucket):
            return self._error(404, "NoSuchBucket", call)
        return None

    def answer(self, call: Call, body: Body, files: ExitStack) -> Answer:
        """The answer to a request that `refused` lets through. `files` closes what its pieces are read from."""
        claimed = call.headers.get("x-amz-content-sha256", UNSIGNED)
        if body.sha256 is not None and claimed not in (UNSIGNED, body.sha256):
            return self._error(400, "XAmzContentSHA256Mismatch", call)
        match call.operation:
            case "GET" | "HEAD":
                return self._read(call, files)
            case "PUT":
                return self._written(call, body, f'"{body.md5.hex()}"', None)
            case "LIST":
                return self._list(call)
            case "MAKE":
                self.folder.make_bucket(call.key.rstrip("/"))
                return answer(200, {"Location": f"/{call.key}"})
            case "START":
                upload = self.folder.start(call.key)
                return xml(200, _tags("InitiateMultipartUploadResult", UploadId=upload))
            case "PART":
                return self._part(call, body)
            case "COMPLETE":
                return self._complete(call, body)
            case "ABORT":
                if self.folder.parts(call.key, call.query["uploadId"]) is None:
                    return self._error(404, "NoSuchUpload", call)
                self.folder.abort(call.query["uploadId"])
                return Answer(204, {})
            case "OTHER":
                return self._error(405, "MethodNotAllowed", call)

    def _error(self, status: int, code: str, call: Call) -> Answer:
        return self.flavour.error(status, code, call.key)

    def _about(self, found: Found) -> dict[str, str]:
        return {
            "ETag": found.etag,
            "Last-Modified": formatdate(found.modified_ns / 1e9, usegmt=True),
            "Accept-Ranges": "bytes",
            "Content-Type": "application/octet-stream",
            **self._generation(found),
        }

    def _generation(self, found: Found) -> dict[str, str]:
        header = self.flavour.generation_header
        return {header: str(found.modified_ns)} if header else {}

    def _read(self, call: Call, files: ExitStack) -> Answer:
        opened = self.folder.open(call.key)
        if opened is None:
            return self._error(404, "NoSuchKey", call)
        found, file = opened
        files.enter_context(file)
        headers = self._about(found)
        if call.headers.get("if-match", found.etag) not in ("*", found.etag):
            return self._error(412, "PreconditionFailed", call)
        if call.headers.get("if-none-match") in ("*", found.etag):
            return Answer(304, headers)
        cut = range_of(call.range, found.size)
        if cut is None:
            return answer(200, headers, FilePiece(file, 0, found.size))
        first, end = cut
        if first >= end:
            refused = self._error(416, "InvalidRange", call)
            return Answer(416, {**refused.headers, "Content-Range": f"bytes */{found.size}"}, refused.pieces)
        headers["Content-Range"] = f"bytes {first}-{end - 1}/{found.size}"
        return answer(206, headers, FilePiece(file, first, end - first))

    def _written(self, call: Call, body: Body, etag: str, text: str | None) -> Answer:
        found = self.folder.put(call.key, body, etag, self.flavour.allowed(call.headers))
        if found is None:
            return self._error(412, "PreconditionFailed", call)
        headers = {"ETag": etag, **self._generation(found)}
        return answer(200, headers) if text is None else xml(200, text)

    def _part(self, call: Call, body: Body) -> Answer:
        number = call.query.get("partNumber", "")
        if not number.isascii() or not number.isdecimal() or not 1 <= int(number) <= _MOST_PARTS:
            return self._error(400, "InvalidArgument", call)
        if not self.folder.add(call.key, call.query["uploadId"], int(number), body):
            return self._error(404, "NoSuchUpload", call)
        return answer(200, {"ETag": f'"{body.md5.hex()}"'})

    def _complete(self, call: Call, body: Body) -> Answer:
        upload = call.query["uploadId"]
        parts = self.folder.parts(call.key, upload)
        if parts is None:
            return self._error(404, "NoSuchUpload", call)
        if body.size > _MOST_XML:
            return self._error(400, "MalformedXML", call)
        named = _named_parts(body.path.read_text("utf-8", "replace"))
        if not named:
            return self._error(400, "MalformedXML", call)
        numbers = [number for number, _ in named]
        if numbers != sorted(set(numbers)):
            return self._error(400, "InvalidPartOrder", call)
        if any(number not in parts or parts[number].md5.hex() != etag for number, etag in named):
            return self._error(400, "InvalidPart", call)
        chosen = [parts[number] for number in numbers]
        if any(part.size < SMALLEST_PART for part in chosen[:-1]):
            return self._error(400, "EntityTooSmall", call)
        whole, etag = self.folder.joined(chosen)
        bucket, _, name = call.key.partition("/")
        done = self._written(
            call, whole, etag, _tags("CompleteMultipartUploadResult", Bucket=bucket, Key=name, ETag=etag)
        )
        if done.status == 200:
            self.folder.abort(upload)
        return done

    def _list(self, call: Call) -> Answer:
        query = call.query
        bucket = call.key.partition("/")[0]
        delimiter, skip = query.get("delimiter", ""), len(bucket) + 1
        limit = query.get("max-keys", "")
        most = min(int(limit), _MOST_KEYS) if re.fullmatch(r"[0-9]{1,9}", limit) else _MOST_KEYS
        after = query.get("continuation-token") or query.get("start-after", "")
        found: list[str] = []
        last, more = "", False
        for each in self.folder.keys(call.key):
            name = each.key[skip:]
            head, cut, _ = name[len(query.get("prefix", "")) :].partition(delimiter) if delimiter else ("", "", "")
            shown = query.get("prefix", "") + head + cut if cut else name
            if shown.encode() <= after.encode() or (cut and shown == last):
                continue
            if len(found) == most:
                more = True
                break
            last = shown
            found.append(_tags("CommonPrefixes", Prefix=shown) if cut else _contents(shown, each))
        token = {"NextContinuationToken": last} if more else {}
        facts = _tags(
            "", Name=bucket, Prefix=query.get("prefix", ""), KeyCount=str(len(found)), MaxKeys=str(most), **token
        )
        listed = f"{facts}<IsTruncated>{str(more).lower()}</IsTruncated>{''.join(found)}"
        return xml(200, f"<ListBucketResult>{listed}</ListBucketResult>")


def range_of(header: str | None, size: int) -> tuple[int, int] | None:
    """First byte and end of what a Range header asks of an object; None: all of it, also where S3 ignores the header.

    The range is empty where it cannot be satisfied.
    """
    found = _RANGE.fullmatch(header or "")
    if found is None or found[0] == "bytes=-":
        return None
    first, last = found.groups()
    if not first:
        return max(0, size - int(last)), size
    if last and int(last) < int(first):
        return None
    return int(first), min(size, int(last) + 1) if last else size


def _named_parts(text: str) -> list[tuple[int, str]]:
    """Number and MD5 of each part that a client names; empty where one is malformed."""
    found = [(_NUMBER.search(part), _ETAG.search(part)) for part in _PART.findall(text)]
    whole = [(int(number[1]), etag[1]) for number, etag in found if number is not None and etag is not None]
    return whole if len(whole) == len(found) else []


def _contents(name: str, found: Found) -> str:
    modified = datetime.fromtimestamp(found.modified_ns // 10**9, UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")
    return _tags("Contents", Key=name, Size=str(found.size), LastModified=modified, ETag=found.etag)


def _tags(outer: str, **inner: str) -> str:
    text = "".join(f"<{name}>{escape(value)}</{name}>" for name, value in inner.items())
    return f"<{outer}>{text}</{outer}>" if outer else text
