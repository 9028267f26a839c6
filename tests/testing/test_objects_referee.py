"""Does the object store answer as S3 does? The same signed requests go to `moto`, which others wrote to be like S3.

`moto` runs in a process of its own, as its libraries warn of what is old in them. It checks each signature with AWS's
own code, so it also is a referee of ours.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from typing import NamedTuple
from urllib.parse import urlencode

import pytest

from tests.testing.support import Told, ask
from tests.tools.objects import S3, Keys, ObjectStore
from tests.tools.objects.service import SMALLEST_PART

pytest.importorskip("moto", reason="moto is not installed: pip install 'moto[s3]' flask flask-cors")
pytest.importorskip("flask_cors", reason="moto's server is not installed: pip install flask flask-cors")
pytestmark = pytest.mark.slow

DATA = bytes(range(256)) * 4
LEAVE = '{"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "s3:*", "Resource": "*"}]}'
SETTING_UP = (
    {"Action": "CreateUser", "UserName": "tester"},
    {"Action": "PutUserPolicy", "UserName": "tester", "PolicyName": "all", "PolicyDocument": LEAVE},
    {"Action": "CreateAccessKey", "UserName": "tester"},
)


class Referee(NamedTuple):
    """A server of moto, and the credentials that it made."""

    url: str
    keys: Keys


@pytest.fixture(scope="module")
def referee() -> Iterator[Referee]:
    command = [sys.executable, "-W", "ignore", "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"]
    environment = {**os.environ, "INITIAL_NO_AUTH_ACTION_COUNT": str(len(SETTING_UP))}
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        try:
            assert process.stderr is not None
            lines = iter(process.stderr.readline, "")
            url = next(found[0] for line in lines if (found := re.search(r"http://127\.0\.0\.1:\d+", line)))
            scope = "AWS4-HMAC-SHA256 Credential=x/20260101/us-east-1/iam/aws4_request, SignedHeaders=host, Signature=0"
            form = {"Authorization": scope, "Content-Type": "application/x-www-form-urlencoded"}
            for action in SETTING_UP:
                told = ask(url, "POST", "/", body=urlencode({**action, "Version": "2010-05-08"}).encode(), headers=form)
                assert told.status == 200, told
            yield Referee(url, Keys(tag("AccessKeyId", told), tag("SecretAccessKey", told)))
        finally:
            process.terminate()


@pytest.fixture(scope="module")
def store(referee: Referee) -> Iterator[ObjectStore]:
    with ObjectStore(flavour=S3(referee.keys)) as found:
        yield found


def tag(name: str, told: Told) -> str:
    """What an XML answer has in its first element of this name; empty: none."""
    found = re.search(f"<{name}>(.*?)</{name}>", told.body.decode(errors="replace"))
    return found[1].replace("&quot;", '"') if found else ""


class Pair:
    """Asks both the same, and compares what they say."""

    def __init__(self, store: ObjectStore, referee: Referee) -> None:
        self._urls, self.keys = (store.url, referee.url), referee.keys

    def ask(
        self,
        method: str,
        target: str | tuple[str, str],
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
        keys: Keys | None = None,
    ) -> tuple[Told, Told]:
        """Both answers, which have the same status, and the same ETag and range, or the same code of an error."""
        targets = (target, target) if isinstance(target, str) else target
        ours, theirs = (
            ask(url, method, each, body=body, headers=headers, keys=keys or self.keys)
            for url, each in zip(self._urls, targets, strict=True)
        )
        for name in ("etag", "content-range") if ours.status < 400 else ():
            assert ours.headers.get(name) == theirs.headers.get(name), (method, target, name)
        assert (ours.status, tag("Code", ours)) == (theirs.status, tag("Code", theirs)), (method, target, headers)
        if ours.status in (200, 206) and method == "GET" and "?" not in targets[0]:
            assert ours.body == theirs.body
        return ours, theirs


@pytest.fixture
def pair(store: ObjectStore, referee: Referee) -> Pair:
    found = Pair(store, referee)
    found.ask("PUT", "/bucket")
    found.ask("PUT", "/bucket/k", DATA)
    return found


def test_reads_are_answered_as_by_the_referee(pair: Pair) -> None:
    """Ranges of all kinds, conditions, and what is not there."""
    etag = f'"{hashlib.md5(DATA).hexdigest()}"'
    for header in ("0-0", "5-9", "1000-", "-5", "-5000", "1023-2000", "1024-", "5000-6000", "9-5"):
        pair.ask("GET", "/bucket/k", headers={"Range": f"bytes={header}"})
    pair.ask("GET", "/bucket/k", headers={"If-Match": etag})
    pair.ask("GET", "/bucket/k", headers={"If-Match": '"other"'})
    pair.ask("HEAD", "/bucket/k")
    pair.ask("GET", "/bucket/none")
    pair.ask("HEAD", "/bucket/none")
    pair.ask("GET", "/nobucket/k")
    ours, theirs = pair.ask("GET", "/bucket?list-type=2&prefix=k")
    assert [tag(name, ours) for name in ("Key", "Size", "ETag")] == [
        tag(name, theirs) for name in ("Key", "Size", "ETag")
    ]


def test_writes_are_answered_as_by_the_referee(pair: Pair) -> None:
    """Any name; create-only; only where the object is the one meant."""
    for name in ("a%20b/%C3%BC%3D1%2B.txt", "x/y/z", "empty"):
        pair.ask("PUT", f"/bucket/{name}", b"" if name == "empty" else name.encode())
        pair.ask("GET", f"/bucket/{name}")
    pair.ask("PUT", "/bucket/fresh", b"1", {"If-None-Match": "*"})
    pair.ask("PUT", "/bucket/fresh", b"2", {"If-None-Match": "*"})
    pair.ask("GET", "/bucket/fresh")
    pair.ask("PUT", "/nobucket/k", b"1")


def test_uploads_in_parts_are_answered_as_by_the_referee(pair: Pair) -> None:
    """The ETag of the whole; parts that are too small or not there; an upload that is aborted."""
    parts = [b"a" * SMALLEST_PART, b"b"]
    etags = [hashlib.md5(part).hexdigest() for part in parts]

    def completion(*chosen: int) -> bytes:
        each = (f"<Part><PartNumber>{n}</PartNumber><ETag>{etags[n - 1]}</ETag></Part>" for n in chosen)
        return f"<CompleteMultipartUpload>{''.join(each)}</CompleteMultipartUpload>".encode()

    def uploading() -> tuple[str, str]:
        ours, theirs = pair.ask("POST", "/bucket/m?uploads=")
        where = [f"/bucket/m?uploadId={tag('UploadId', told)}" for told in (ours, theirs)]
        for number, part in enumerate(parts, 1):
            pair.ask("PUT", (f"{where[0]}&partNumber={number}", f"{where[1]}&partNumber={number}"), part)
        return where[0], where[1]

    where = uploading()
    ours, theirs = pair.ask("POST", where, completion(1, 2))
    assert tag("ETag", ours) == tag("ETag", theirs)
    pair.ask("GET", "/bucket/m")
    pair.ask("GET", "/bucket/m", headers={"Range": f"bytes={SMALLEST_PART - 1}-{SMALLEST_PART}"})
    where = uploading()
    pair.ask("DELETE", where)
    pair.ask("DELETE", where)
    etags.append("0" * 32)
    pair.ask("POST", uploading(), completion(1, 3))


def test_the_same_signatures_are_refused(pair: Pair) -> None:
    """A wrong secret, and a key that is not there; for reads and for writes."""
    for keys in (Keys(pair.keys.access, "wrong"), Keys("AKIAUNKNOWNUNKNOWNXX", pair.keys.secret)):
        ours, _ = pair.ask("GET", "/bucket/k", keys=keys)
        assert ours.status == 403
        pair.ask("PUT", "/bucket/k", b"1", keys=keys)
    pair.ask("GET", "/bucket/k")
