"""The store of `tests.tools.objects`, asked by the standard library's client: what is right, and who may ask."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.client import RemoteDisconnected
from pathlib import Path
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.rounds import Chance, examples, rounds
from tests.support import LIMIT_S, wait_until
from tests.testing.support import Told, ask, signed
from tests.tools.objects import S3, Busy, Fault, Faults, Flavour, Gcs, Http, Keys, ObjectStore, Request
from tests.tools.objects.pipe import Pipe
from tests.tools.objects.service import SMALLEST_PART
from tests.tools.objects.signature import Signed, refusal, signature_of

KEYS = Keys("AKIAEXAMPLE", "a secret")
DATA = bytes(range(256)) * 700
FLAVOURS = [S3(), S3(KEYS), Gcs(), Gcs("token"), Http(), Http("token")]


@pytest.fixture(scope="module")
def store() -> Iterator[ObjectStore]:
    with ObjectStore() as found:
        found.folder.make_bucket("bucket")
        yield found


def ask_as(flavour: Flavour, store: ObjectStore, method: str, target: str, body: bytes = b"", **headers: str) -> Told:
    """Ask with the credentials that a flavour wants."""
    if isinstance(flavour, Gcs | Http) and flavour.token is not None:
        headers["Authorization"] = f"Bearer {flavour.token}"
    return ask(store.url, method, target, body=body, headers=headers, keys=getattr(flavour, "keys", None))


def expected(data: bytes, header: str) -> tuple[int, bytes]:
    """Status and body of a read with a Range header, byte by byte."""
    first, last = header.removeprefix("bytes=").split("-")
    if first and last and int(first) > int(last):
        return 200, data
    if first:
        wanted = [at for at in range(len(data)) if int(first) <= at and (not last or at <= int(last))]
    else:
        wanted = [at for at in range(len(data)) if at >= len(data) - int(last)]
    return (206, bytes(data[at] for at in wanted)) if wanted else (416, b"")


numbers = st.integers(0, 40) | st.sampled_from([10**6, 10**18])
headers = st.builds("bytes={}-{}".format, numbers, numbers | st.just("")) | st.builds("bytes=-{}".format, numbers)


@pytest.mark.slow
@examples(300)
@given(st.binary(max_size=30), headers)
def test_any_range_of_any_object_is_its_slice(store: ObjectStore, data: bytes, header: str) -> None:
    """Also where it begins or ends past the object, where it counts from the end, and where it is no range."""
    store.put("bucket/any", data)
    told = ask(store.url, "GET", "/bucket/any", headers={"Range": header})
    status, body = expected(data, header)
    assert told.status == status
    if status == 416:
        assert told.headers["content-range"] == f"bytes */{len(data)}"
        return
    assert told.body == body
    assert int(told.headers["content-length"]) == len(body)
    if status == 206:
        first = len(data) - len(body) if header.startswith("bytes=-") else int(header[6:].split("-")[0])
        assert told.headers["content-range"] == f"bytes {first}-{first + len(body) - 1}/{len(data)}"


@pytest.mark.parametrize("header", ["bytes=-", "bytes=0-0,2-3", "bytes= 0-1", "lines=0-1", "bytes=a-b", ""])
def test_what_is_no_range_is_all_of_the_object(store: ObjectStore, header: str) -> None:
    """As S3 does."""
    store.put("bucket/k", DATA)
    told = ask(store.url, "GET", "/bucket/k", headers={"Range": header})
    assert (told.status, told.body) == (200, DATA)


@pytest.mark.parametrize("flavour", FLAVOURS, ids=repr)
def test_what_is_put_is_read_and_noted(flavour: Flavour) -> None:
    """In each flavour, with and without credentials; the ETag is MD5."""
    with ObjectStore(flavour=flavour) as store:
        store.folder.make_bucket("bucket")
        key = "bucket/a b/ü=1+%.txt"
        written = ask_as(flavour, store, "PUT", f"/{quote(key)}", DATA)
        read = ask_as(flavour, store, "GET", f"/{quote(key)}", Range="bytes=1-300")
        head = ask_as(flavour, store, "HEAD", f"/{quote(key)}")
        gone = ask_as(flavour, store, "GET", "/bucket/none")
        assert (written.status, read.status, head.status, gone.status) == (200, 206, 200, 404)
        assert written.etag == read.etag == head.etag == f'"{hashlib.md5(DATA).hexdigest()}"'
        assert read.body == DATA[1:301]
        assert int(head.headers["content-length"]) == len(DATA)
        assert ("x-goog-generation" in read.headers) == isinstance(flavour, Gcs)
        assert store.requests == [
            Request("PUT", key, None, 200, 0, len(DATA)),
            Request("GET", key, "bytes=1-300", 206, 300, 0),
            Request("HEAD", key, None, 200, 0, 0),
            Request("GET", "bucket/none", None, 404, len(gone.body), 0),
        ]
        assert (store.folder.root / key).read_bytes() == DATA


def test_an_etag_changes_with_the_object(store: ObjectStore) -> None:
    """Also where another program wrote the file; a read can ask for one ETag only."""
    etags = set()
    for number in range(5):
        store.put("bucket/k", bytes([number]) * 10)
        etags.add(ask(store.url, "GET", "/bucket/k").etag)
        etags.add(ask(store.url, "PUT", "/bucket/k", body=bytes([number]) * 10).etag)
    assert len(etags) == 10
    now = ask(store.url, "HEAD", "/bucket/k").etag
    assert ask(store.url, "GET", "/bucket/k", headers={"If-Match": now}).status == 200
    assert ask(store.url, "GET", "/bucket/k", headers={"If-Match": '"other"'}).status == 412
    assert ask(store.url, "GET", "/bucket/k", headers={"If-None-Match": now}).status == 304
    assert ask(store.url, "GET", "/bucket/k", headers={"If-None-Match": '"other"'}).status == 200


@pytest.mark.parametrize("flavour", [S3(), Gcs(), Http()], ids=repr)
@rounds(3)
def test_one_of_many_writers_creates(chance: Chance, flavour: Flavour) -> None:
    """All others hear 412, and the object is the winner's."""
    only_new = {"x-goog-if-generation-match": "0"} if isinstance(flavour, Gcs) else {"If-None-Match": "*"}
    with ObjectStore(flavour=flavour) as store:
        store.folder.make_bucket("bucket")
        bodies = [chance.rng.randbytes(chance.rng.randrange(1, 100_000)) for _ in range(6)]
        told: list[Told | None] = [None] * len(bodies)
        start = threading.Barrier(len(bodies))

        def write(number: int) -> None:
            start.wait(LIMIT_S)
            told[number] = ask(store.url, "PUT", "/bucket/k", body=bodies[number], headers=only_new)

        threads = [threading.Thread(target=write, args=(number,)) for number in range(len(bodies))]
        for each in threads:
            each.start()
        for each in threads:
            each.join(LIMIT_S)
        statuses = [each.status for each in told if each is not None]
        assert sorted(statuses) == [200] + [412] * 5
        assert ask(store.url, "GET", "/bucket/k").body == bodies[statuses.index(200)]
        assert list(store.folder.scratch().parent.iterdir()) == []


def test_an_object_is_replaced_only_where_it_is_the_one_meant(store: ObjectStore) -> None:
    """If-Match on a write."""
    first = ask(store.url, "PUT", "/bucket/cas", body=b"1")
    assert ask(store.url, "PUT", "/bucket/cas", body=b"2", headers={"If-Match": first.etag}).status == 200
    assert ask(store.url, "PUT", "/bucket/cas", body=b"3", headers={"If-Match": first.etag}).status == 412
    assert ask(store.url, "GET", "/bucket/cas").body == b"2"


def started(store: ObjectStore, key: str) -> str:
    """The name of an upload that has begun."""
    found = re.search("<UploadId>(.+)</UploadId>", ask(store.url, "POST", f"/{key}?uploads=").body.decode())
    assert found is not None
    return found[1]


def completion(*parts: tuple[int, str]) -> bytes:
    """What a client sends to end an upload."""
    each = "".join(f"<Part><PartNumber>{number}</PartNumber><ETag>{etag}</ETag></Part>" for number, etag in parts)
    return f"<CompleteMultipartUpload>{each}</CompleteMultipartUpload>".encode()


@pytest.mark.slow
def test_an_upload_in_parts_appears_whole_at_its_end(store: ObjectStore) -> None:
    """Parts come in any order and more than once; ETag as S3 makes it; create-only; a wrong end is refused."""
    parts = {2: b"b" * SMALLEST_PART, 1: b"a" * SMALLEST_PART, 3: b"c"}
    upload = started(store, "bucket/m")
    where = f"/bucket/m?uploadId={upload}"
    for number, data in {2: b"x", **parts}.items():
        assert ask(store.url, "PUT", f"{where}&partNumber={number}", body=b"old").status == 200
        assert ask(store.url, "PUT", f"{where}&partNumber={number}", body=data).status == 200
    etags = {number: hashlib.md5(data).hexdigest() for number, data in parts.items()}
    right = [(number, f'"{etags[number]}"') for number in (1, 2, 3)]
    wrongs: list[tuple[str, list[tuple[int, str]]]] = [
        ("MalformedXML", []),
        ("MalformedXML", [*right, (4, "x")]),
        ("InvalidPartOrder", [right[1], right[0], right[2]]),
        ("InvalidPartOrder", [right[0], right[0]]),
        ("InvalidPart", [right[0], (2, etags[1])]),
        ("InvalidPart", [*right, (4, etags[2])]),
        ("EntityTooSmall", [(1, etags[1]), (3, etags[3]), (4, etags[1])]),
    ]
    ask(store.url, "PUT", f"{where}&partNumber=4", body=parts[1])
    for code, wrong in wrongs:
        told = ask(store.url, "POST", where, body=completion(*wrong))
        assert (told.status, f"<Code>{code}</Code>".encode() in told.body) == (400, True), wrong
    assert ask(store.url, "PUT", where.replace("/m?", "/other?") + "&partNumber=1", body=b"x").status == 404
    assert ask(store.url, "GET", "/bucket/m").status == 404
    done = ask(store.url, "POST", where, body=completion(*right), headers={"If-None-Match": "*"})
    assert done.status == 200
    told = ask(store.url, "GET", "/bucket/m")
    assert told.body == b"".join(parts[number] for number in (1, 2, 3))
    together = hashlib.md5(b"".join(hashlib.md5(parts[number]).digest() for number in (1, 2, 3))).hexdigest()
    assert told.etag == f'"{together}-3"'
    assert ask(store.url, "POST", where, body=completion(*right)).status == 404
    again = started(store, "bucket/m")
    ask(store.url, "PUT", f"/bucket/m?uploadId={again}&partNumber=1", body=b"z")
    last = completion((1, hashlib.md5(b"z").hexdigest()))
    assert (
        ask(store.url, "POST", f"/bucket/m?uploadId={again}", body=last, headers={"If-None-Match": "*"}).status == 412
    )
    assert ask(store.url, "DELETE", f"/bucket/m?uploadId={again}").status == 204
    assert ask(store.url, "DELETE", f"/bucket/m?uploadId={again}").status == 404
    assert list(store.folder.scratch().parent.iterdir()) == []


def test_a_part_may_be_too_small_only_at_the_end(store: ObjectStore) -> None:
    """As in S3: 5 MiB."""
    upload = started(store, "bucket/s")
    where = f"/bucket/s?uploadId={upload}"
    etags = [ask(store.url, "PUT", f"{where}&partNumber={number}", body=b"small").etag for number in (1, 2)]
    told = ask(store.url, "POST", where, body=completion((1, etags[0]), (2, etags[1])))
    assert (told.status, b"EntityTooSmall" in told.body) == (400, True)


names = st.lists(st.text("ab-é", min_size=1, max_size=2), min_size=1, max_size=3).map("/".join)


@pytest.mark.slow
@examples(30)
@given(st.sets(names, max_size=8), st.text("ab-é/", max_size=3), st.booleans(), st.integers(1, 3))
def test_a_list_is_what_begins_with_the_prefix(keys: set[str], prefix: str, grouped: bool, most: int) -> None:
    """In the order of bytes, page by page, with or without common prefixes."""
    keys = {key for key in keys if not any(other.startswith(f"{key}/") for other in keys)}  # no file is a folder
    with ObjectStore() as store:
        store.folder.make_bucket("bucket")
        for key in keys:
            store.put(f"bucket/{key}", b"")
        expected = set()
        for key in keys:
            if key.startswith(prefix):
                head, cut, _ = key[len(prefix) :].partition("/")
                expected.add(prefix + head + "/" if grouped and cut else key)
        listed, token = [], ""
        for _ in range(len(keys) + 1):
            query = f"list-type=2&prefix={quote_plus(prefix)}&max-keys={most}" + "&delimiter=%2F" * grouped
            told = ask(store.url, "GET", f"/bucket?{query}" + f"&continuation-token={quote_plus(token)}" * bool(token))
            text = told.body.decode()
            page = re.findall(r"<(?:Contents><Key|CommonPrefixes><Prefix)>(.*?)<", text)
            assert len(page) <= most
            listed += page
            found = re.search("<NextContinuationToken>(.*)</NextContinuationToken>", text)
            if found is None:
                break
            token = found[1]
        assert listed == sorted(expected, key=str.encode)


def test_a_signature_is_the_one_that_the_documentation_of_s3_has() -> None:
    """Its examples: a read of ten bytes, and a list."""
    keys = Keys("AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY")
    headers = {
        "host": "examplebucket.s3.amazonaws.com",
        "range": "bytes=0-9",
        "x-amz-content-sha256": hashlib.sha256(b"").hexdigest(),
        "x-amz-date": "20130524T000000Z",
    }
    read = Signed("GET", "/test.txt", (), headers)
    assert (
        signature_of(read, keys, "us-east-1", sorted(headers))
        == "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"
    )
    listed = Signed("GET", "/", (("prefix", "J"), ("max-keys", "2")), headers)
    assert (
        signature_of(listed, keys, "us-east-1", ["host", "x-amz-content-sha256", "x-amz-date"])
        == "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"
    )


def test_only_one_who_knows_the_secret_may_ask_s3() -> None:
    """Each wrong signature has the status and the code of S3; a signature holds for its request and for 15 minutes."""
    temporary = Keys(KEYS.access, KEYS.secret, "session")
    now = datetime.now(UTC)

    def told(
        keys: Keys, right: Keys = KEYS, *, age: timedelta = timedelta(0), change: tuple[str, str] = ("", "")
    ) -> tuple[int, str] | None:
        headers = {"Host": "h", **signed("GET", "/b/k?a=1", "h", {"Range": "bytes=0-1"}, b"", keys, now - age)}
        found = {**{name.lower(): value for name, value in headers.items()}, "range": "bytes=0-1", **dict([change])}
        path = found.pop("path", "/b/k")
        return refusal(Signed("GET", path, (("a", "1"),), found), right, now)

    assert told(KEYS) is None
    assert told(temporary, temporary) is None
    assert told(KEYS, age=timedelta(minutes=14)) is None
    assert told(KEYS, age=timedelta(minutes=16)) == (403, "RequestTimeTooSkewed")
    assert told(Keys(KEYS.access, "wrong")) == (403, "SignatureDoesNotMatch")
    assert told(Keys("other", KEYS.secret)) == (403, "InvalidAccessKeyId")
    assert told(KEYS, temporary) == (400, "InvalidToken")
    assert told(KEYS, change=("range", "bytes=0-2")) == (403, "SignatureDoesNotMatch")
    assert told(KEYS, change=("path", "/b/l")) == (403, "SignatureDoesNotMatch")
    assert told(KEYS, change=("authorization", "Bearer x")) == (400, "AuthorizationHeaderMalformed")
    for moment in ("soon", f"{now:%Y%m%d}Tsoon"):
        assert told(KEYS, change=("x-amz-date", moment)) == (403, "AccessDenied")
    assert refusal(Signed("GET", "/b/k", (), {}), KEYS, now) == (403, "AccessDenied")
    assert KEYS.secret not in repr(KEYS)


def test_a_body_that_is_not_the_signed_one_is_refused() -> None:
    """The signature covers the SHA-256 of what is uploaded."""
    with ObjectStore(flavour=S3(KEYS)) as store:
        store.folder.make_bucket("bucket")
        headers = signed("PUT", "/bucket/k", store.url.removeprefix("http://"), {}, b"right", KEYS)
        told = ask(store.url, "PUT", "/bucket/k", body=b"wrong", headers=headers)
        assert (told.status, b"XAmzContentSHA256Mismatch" in told.body) == (400, True)
        assert ask(store.url, "GET", "/bucket/k", keys=KEYS).status == 404


@pytest.mark.parametrize("flavour", [Gcs("token"), Http("token")], ids=repr)
def test_only_one_who_has_the_token_may_ask(flavour: Flavour) -> None:
    """A bearer's token, else 401."""
    with ObjectStore(flavour=flavour) as store:
        store.put("bucket/k", DATA)
        assert ask(store.url, "GET", "/bucket/k").status == 401
        assert ask(store.url, "GET", "/bucket/k", headers={"Authorization": "Bearer other"}).status == 401
        assert ask(store.url, "GET", "/bucket/k", headers={"Authorization": "Bearer token"}).body == DATA


@pytest.mark.parametrize(
    ("method", "target", "status"),
    [
        ("GET", "/bucket/../secret", 400),
        ("GET", "/bucket/%2e%2e/secret", 400),
        ("PUT", "/bucket/..%2fsecret", 400),
        ("PUT", "/../secret", 400),
        ("PUT", "/bucket/.unfinished/x", 400),
        ("PUT", "/bucket//x", 400),
        ("PUT", "/bucket/x/", 400),
        ("PUT", "/bucket/a%00b", 400),
        ("PUT", "/bucket/%ff", 400),
        ("PUT", "/bucket/" + "x" * 256, 400),
        ("PUT", "/bucket/k?uploadId=none&partNumber=1", 404),
        ("PUT", "/bucket/k?uploadId=none&partNumber=0", 400),
        ("PUT", "/bucket/k?uploadId=none&partNumber=%C2%B2", 400),
        ("POST", "/bucket/k?uploadId=none", 404),
        ("POST", "/bucket/k", 405),
        ("DELETE", "/bucket/k", 405),
        ("PUT", "/none/k", 404),
        ("GET", "/none?list-type=2", 404),
        ("GET", "/", 400),
    ],
)
def test_a_request_without_sense_is_refused(tmp_path: Path, method: str, target: str, status: int) -> None:
    """No file outside of the folder is read or written, and the store goes on."""
    (tmp_path / "secret").write_bytes(b"contents")
    with ObjectStore(tmp_path / "folder") as store:
        store.put("bucket/k", DATA)
        told = ask(store.url, method, target, body=b"new" if method == "PUT" else b"")
        assert (told.status, b"contents" in told.body) == (status, False)
        assert (tmp_path / "secret").read_bytes() == b"contents"
        assert ask(store.url, "GET", "/bucket/k").body == DATA
    assert {path.name for path in tmp_path.rglob("*")} == {"secret", "folder", "bucket", "k"}


@pytest.mark.parametrize(
    "header", [{"Transfer-Encoding": "chunked"}, {"Content-Length": "-1"}, {"Content-Length": "9" * 30}]
)
def test_a_body_of_unknown_size_is_refused(store: ObjectStore, header: dict[str, str]) -> None:
    """411, and the connection ends."""
    assert ask(store.url, "PUT", "/bucket/k", headers=header).status == 411


def test_a_bucket_can_be_made(store: ObjectStore) -> None:
    """By PUT; a second time changes nothing."""
    for _ in range(2):
        assert ask(store.url, "PUT", "/fresh").status == 200
    assert ask(store.url, "PUT", "/fresh/k", body=b"1").status == 200


@pytest.mark.slow
@given(st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 5)), min_size=1), st.integers(1, 500))
def test_a_pipe_is_as_fast_as_it_says(sent: list[tuple[int, int]], rate: int) -> None:
    """Any sizes at any times: the bytes are through when an empty pipe would have them through, one after another."""
    pipe, now, free = Pipe(rate), 0.0, 0.0
    for size, later in sent:
        now += later
        free = max(free, now) + size / rate
        assert now + pipe.reserve(size, now) == pytest.approx(free)
    assert Pipe(None).reserve(10**12, 0.0) == 0


@pytest.mark.slow
def test_latency_and_bandwidth_are_what_was_set() -> None:
    """No answer comes sooner; all connections share one bandwidth."""
    with ObjectStore(latency_s=0.05) as store:
        store.put("bucket/k", DATA)
        began = time.monotonic()
        ask(store.url, "GET", "/bucket/k")
        assert time.monotonic() - began >= 0.05
        store.latency_s, store.bytes_per_s = 0.0, 20 * len(DATA)
        assert store.bytes_per_s == 20 * len(DATA)
        began = time.monotonic()
        threads = [threading.Thread(target=ask, args=(store.url, "GET", "/bucket/k")) for _ in range(4)]
        for each in threads:
            each.start()
        for each in threads:
            each.join(LIMIT_S)
        assert time.monotonic() - began >= 4 / 20


def test_a_store_that_is_closed_ends_its_connections_and_leaves_nothing() -> None:
    """Also one that waits; its own folder is gone, and it can be closed again."""
    store = ObjectStore(latency_s=LIMIT_S)
    store.put("bucket/k", DATA)
    root = store.folder.root
    faults: list[BaseException] = []

    def wait() -> None:
        try:
            ask(store.url, "GET", "/bucket/k")
        except OSError as fault:
            faults.append(fault)

    thread = threading.Thread(target=wait)
    thread.start()
    wait_until(lambda: bool(store._listener._open), "a connection")
    store.close()
    store.close()
    thread.join(LIMIT_S)
    assert len(faults) == 1
    assert not root.exists()
    with pytest.raises(ConnectionRefusedError):
        ask(store.url, "GET", "/bucket/k")


def test_a_bug_in_the_store_is_raised_at_its_end() -> None:
    """It is not taken for a fault that was asked for."""
    store = ObjectStore(faults=Faults(Fault(Busy(status=7))))
    with pytest.raises(RemoteDisconnected):
        ask(store.url, "GET", "/bucket/k")
    with pytest.raises(ValueError, match="7"):
        store.close()


@pytest.mark.slow
def test_the_store_in_a_process_of_its_own_tells_what_came(tmp_path: Path) -> None:
    """`python -m tests.tools.objects FOLDER`, at an address that the user names."""
    (tmp_path / "bucket").mkdir()
    (tmp_path / "bucket" / "k").write_bytes(DATA)
    command = [sys.executable, "-m", "tests.tools.objects", str(tmp_path), "--flavour", "http", "--latency", "0.001"]
    command += ["--address", "127.0.0.2"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        assert url.startswith("http://127.0.0.2:")
        assert ask(url, "GET", "/bucket/k", headers={"Range": "bytes=5-9"}).body == DATA[5:10]
        out, _ = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0
    assert [json.loads(line) for line in out.splitlines()] == [
        {"operation": "GET", "key": "bucket/k", "range": "bytes=5-9", "status": 206, "sent": 5, "received": 0}
    ]
    assert {path.name for path in tmp_path.rglob("*")} == {"bucket", "k"}
