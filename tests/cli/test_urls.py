"""Every verb that reads takes a URL, and tells the same as of the folder that was put there."""

from __future__ import annotations

import re
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from brand.chunker import convert_audio, convert_images
from brand.node.client.connector import look_at
from brand.storage.io import frontback
from brand.storage.maintenance import verify as verifying
from brand.stores import cloud
from tests.cli.test_hostile_names import assert_harmless
from tests.cli.test_launch import check_draws, launching
from tests.cli.test_serve_top import drawn, serving
from tests.shop import SPEECHES, Shop, shop
from tests.support import LIMIT_S, Outcome, brand, files_below, options, wait_until
from tests.tools.objects import Busy, Expired, Fault, Faults, Lost, Reset, Short, WrongETag

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def source(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The photos, one file that is no picture, and an empty folder."""
    folder = tmp_path_factory.mktemp("urls") / "src"
    shutil.copytree(photos, folder)
    (folder / "animals" / "empty").mkdir()
    (folder / "animals" / "bad.png").write_bytes(b"no picture")
    return folder


@pytest.fixture(scope="module")
def plain(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """It, converted in chunks of eight. Not to be changed."""
    target = tmp_path_factory.mktemp("urls") / "set.brand"
    convert_images(source, target, options(8, skip_errors=True))
    return target


@pytest.fixture(params=SPEECHES)
def any_shop(
    request: pytest.FixtureRequest, plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Shop]:
    """The data set in each kind of store."""
    with shop(request.param, tmp_path, monkeypatch) as opened:
        shutil.copytree(plain, opened.folder())
        yield opened


@pytest.fixture
def s3(plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    """The data set in S3."""
    with shop("s3", tmp_path, monkeypatch) as opened:
        shutil.copytree(plain, opened.folder())
        yield opened


def both(opened: Shop, *args: str, code: int = 0) -> tuple[Outcome, Outcome]:
    """What a verb makes of the folder and of the URL, each in place of DST."""
    told = [brand(*(place if each == "DST" else each for each in args)) for place in (opened.folder(), opened.url())]
    assert [each.code for each in told] == [code, code], told
    return told[0], told[1]


def assert_same(opened: Shop, there: Outcome, here: Outcome) -> None:
    """The URL stands wherever the path does, and no name of a file of this machine is told."""
    assert here.stdout.replace(opened.url().encode(), str(opened.folder()).encode()) == there.stdout
    assert b"/cache/" not in here.stdout + here.err.encode()


def test_what_reads_tells_the_same(any_shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of samples and of the whole, for people and for machines; the store is asked by GET alone."""
    opened = any_shop
    for args in (
        ("info", "DST", "--json"),
        ("cat", "DST", "7"),
        ("cat", "DST", "7", "--json"),
        ("cat", "DST", "7", "--field", "image"),
        ("cat", "DST", "7", "--field", "label"),
        ("verify", "DST"),
        ("verify", "DST", "--json"),
        ("simulate", "DST", "--storage", "s3"),
    ):
        assert_same(opened, *both(opened, *args))
    monkeypatch.setenv("COLUMNS", "300")  # a narrow table cuts names
    there, here = (" ".join(told.out.split()) for told in both(opened, "info", "DST"))
    assert here.replace(opened.url(), str(opened.folder())) == there
    assert set(opened.asked()) == {"GET"}


def test_the_folder_comes_back(any_shop: Shop, clips: Path, tmp_path: Path) -> None:
    """Bit for bit, with transcripts and empty folders; nothing else is left beside them."""
    convert_audio(clips, any_shop.folder("clips.brand"), options(8), transcripts=clips / "transcripts.tsv")
    for name in ("set.brand", "clips.brand"):
        told = [
            brand("unpack", where, tmp_path / f"{kind}-{name}")
            for kind, where in (("folder", any_shop.folder(name)), ("store", any_shop.url(name)))
        ]
        assert [each.code for each in told] == [0, 0], told
        assert told[1].out.replace("/store-", "/folder-") == told[0].out
        assert files_below(tmp_path / f"store-{name}") == files_below(tmp_path / f"folder-{name}")
    assert files_below(tmp_path / "store-clips.brand") == files_below(clips)
    assert any_shop.asked("extras.zip") == ["GET", "GET"]


def test_a_cache_folder_is_filled_from_it(any_shop: Shop, tmp_path: Path) -> None:
    """Each sample, checked."""
    told = brand("cache", "fill", any_shop.url(), tmp_path / "near")
    assert told.code == 0, told.err
    assert re.match(r"31 of 31 samples are in .*/near", told.out)
    sizes = [path.stat().st_size for path in (any_shop.folder() / "chunks").iterdir()]
    asked = [request.sent for request in any_shop.store.requests if "/chunks/" in request.key]
    assert sorted(asked) == sorted(sizes)
    again = brand("cache", "fill", any_shop.url(), tmp_path / "near", "--json").json
    assert (again["path"], again["samples"]) == (any_shop.url(), 0)
    assert len(any_shop.asked("/chunks/")) == len(sizes)


def check_requests(place: Shop, requests: int) -> None:
    """Servers say that they have asked the store so often. The last requests may be on their way."""
    assert requests > 0
    wait_until(lambda: requests <= len(place.asked("/chunks/")), "all requests have reached the store")


def test_a_server_of_it_serves_and_tells_what_it_asked_for(any_shop: Shop) -> None:
    """The URL stands where a path would; the training may name either."""
    with serving(any_shop.url(), "--memory", "1.0") as (address, process):
        shown = brand("top", address, "--once").out
        assert f"data set {any_shop.url()}," in " ".join(shown.split())
        assert drawn(address, any_shop.folder()) == list(range(31))
        facts = brand("top", address, "--json").json
        check_requests(any_shop, facts["store"]["requests"])
        assert facts["store"]["bytes"] > 0
        assert re.search(r"store +.*requests/s, .* in all", brand("top", address, "--once").out)
        process.send_signal(signal.SIGINT)
        process.wait(LIMIT_S)
        assert process.stderr is not None
        told = process.stderr.read().decode()
    assert f"serving {any_shop.url()} with" in told
    assert f'attach with: BrandDataset("{any_shop.url()}", server="{address}")' in told


def test_nodes_of_it_are_launched(s3: Shop) -> None:
    """They read the store."""
    with launching(s3.url(), "--local", 2) as (addresses, _):
        assert len(addresses) == 2
        check_draws([s3.folder()] * 2, addresses)
        facts = [look_at(address) for address in addresses]
        assert [each["data_set"] for each in facts] == [s3.url()] * 2
        check_requests(s3, sum(each["store"]["requests"] for each in facts))


@pytest.mark.parametrize("args", [("reindex",), ("partition", "out", "--nodes", "1")])
def test_what_writes_into_a_data_set_says_what_helps(s3: Shop, args: tuple[str, ...]) -> None:
    """Nothing is asked of the store."""
    told = brand(args[0], s3.url(), *args[1:])
    assert told.code == 2
    cure = f"copy the data set to one first, `brand copy {s3.url()} FOLDER`"
    assert told.err == f"brand: `brand {args[0]}` works on a folder: {cure}\n"
    assert s3.store.requests == []


@pytest.mark.parametrize("args", [("unpack", "DST", "OUT"), ("partition", "DST", "OUT", "--nodes", "1")])
def test_what_writes_a_folder_writes_none_that_has_the_name_of_a_url(
    s3: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, args: tuple[str, ...]
) -> None:
    """It is refused."""
    monkeypatch.chdir(tmp_path)
    names = {"DST": str(s3.folder()), "OUT": "s3://bucket/out"}
    told = brand(*(names.get(each, each) for each in args))
    assert told.code == 2
    assert told.err.endswith(f"s3://bucket/out: `brand {args[0]}` writes to a folder of this machine, not to a store\n")
    assert not (tmp_path / "s3:").exists()


def test_a_secret_in_a_url_is_refused_and_not_repeated(s3: Shop) -> None:
    """By every verb, before anything is asked."""
    for verb, *more in (("info",), ("cat", 0), ("verify",), ("unpack", "out"), ("serve",), ("profile",), ("simulate",)):
        for url in ("https://user:geheim@host/x", "https://host/x?token=geheim"):
            told = brand(verb, url, *more)
            assert told.code == 2, (verb, told)
            assert "geheim" not in told.out + told.err
    assert s3.store.requests == []


def test_a_file_url_is_a_path(plain: Path) -> None:
    """And is shown as one."""
    assert brand("verify", f"file://{plain}").out == brand("verify", plain).out


def test_where_there_is_no_data_set_the_url_is_named(s3: Shop, tmp_path: Path) -> None:
    """For people and for machines."""
    nowhere = s3.url("none.brand")
    for args in (("info", nowhere), ("cat", nowhere, 0), ("verify", nowhere), ("serve", nowhere)):
        told = brand(*args)
        assert told.code == 1
        assert told.err.startswith(f"brand: {nowhere}: not a data set: there is no brand.json"), told.err
    error = brand("verify", nowhere, "--json").json["error"]
    assert error["type"] == "NotADataSetError"


def test_names_that_would_act_on_a_terminal_do_not(s3: Shop) -> None:
    """As for paths."""
    for url in ("s3://bucket/\x1b[31mset.brand", "s3://bucket/a\nbrand: forged", "s3://\x9b\u202e/x", "s3://\x07"):
        for verb, *more in (("info",), ("cat", 0), ("verify",), ("unpack", "out"), ("reindex",), ("simulate",)):
            told = brand(verb, url, *more)
            assert told.code in (1, 2), (verb, url, told)
            assert "Traceback" not in told.err, told.err
            assert_harmless(told)


# -- verify ------------------------------------------------------------------------------------------------------------


def damage(folder: Path, what: str) -> None:
    """Do harm to a data set."""
    chunk, other = (folder / "chunks" / f"0000000{number}.brand" for number in (1, 2))
    data = bytearray(chunk.read_bytes())
    match what:
        case "a chunk is missing":
            chunk.unlink()
        case "a chunk is cut":
            chunk.write_bytes(data[: len(data) // 2])
        case "a chunk is cut in its front":
            chunk.write_bytes(data[:100])
        case "a chunk is longer":
            chunk.write_bytes(data + b"\0")
        case "a chunk is another one":
            chunk.write_bytes(other.read_bytes())
        case "a sample has changed":
            data[-3] ^= 1
            chunk.write_bytes(data)
        case "the table has changed":
            data[400] ^= 1
            chunk.write_bytes(data)
        case "the index is missing":
            (folder / "index" / "place.npy").unlink()
        case "the index has changed":
            index = bytearray((folder / "index" / "samples.npy").read_bytes())
            index[-3] ^= 1
            (folder / "index" / "samples.npy").write_bytes(index)
        case "a companion is missing":
            (folder / "extras.zip").unlink()
        case "a companion has changed":
            (folder / "skipped.tsv").write_bytes((folder / "skipped.tsv").read_bytes().replace(b"bad", b"dab"))
        case _:
            raise AssertionError(what)


HARMS = [
    "a chunk is missing",
    "a chunk is cut",
    "a chunk is cut in its front",
    "a chunk is longer",
    "a chunk is another one",
    "a sample has changed",
    "the table has changed",
    "the index is missing",
    "a companion is missing",
    "a companion has changed",
]


def assert_verify_tells_the_same(opened: Shop, harm: str) -> None:
    """Of the folder and of the URL, after this harm."""
    assert brand("info", opened.url()).code == 0  # so the index is here
    damage(opened.folder(), harm)
    there, here = both(opened, "verify", "DST", code=1)
    assert there.out
    assert_same(opened, there, here)


@pytest.mark.parametrize("harm", HARMS)
def test_verify_finds_in_a_store_what_it_finds_in_a_folder(s3: Shop, harm: str) -> None:
    """The same errors of the same files, chunks and samples, in the same words."""
    assert_verify_tells_the_same(s3, harm)
    assert_same(s3, *both(s3, "verify", "DST", "--json", code=1))


@pytest.mark.parametrize("harm", ["a chunk is missing", "a chunk is cut", "a chunk is longer"])
def test_verify_finds_it_in_any_store(any_shop: Shop, harm: str) -> None:
    """What the answers of stores differ in."""
    assert_verify_tells_the_same(any_shop, harm)


def test_a_changed_index_is_found_though_a_copy_is_here(s3: Shop) -> None:
    """The store's is named once. The chunks are compared with the copy, so they are right."""
    assert brand("info", s3.url()).code == 0
    damage(s3.folder(), "the index has changed")
    errors = brand("verify", s3.url(), "--json").json["errors"]
    assert [(error["type"], error["file"]) for error in errors] == [("ChecksumError", f"{s3.url()}/index/samples.npy")]


def test_a_changed_index_of_which_no_copy_is_here_is_named(s3: Shop) -> None:
    """There is nothing to compare the chunks with."""
    damage(s3.folder(), "the index has changed")
    told = brand("verify", s3.url())
    assert told.code == 1
    assert told.err.startswith(f"brand: {s3.url()}/index/samples.npy: checksum of the index file")


def test_an_object_that_grew_is_not_read(s3: Shop) -> None:
    """Of a file that is no chunk: its size is known."""
    path = s3.folder() / "extras.zip"
    size = path.stat().st_size
    path.write_bytes(path.read_bytes() + bytes(1 << 20))
    told = brand("verify", s3.url())
    assert told.out.startswith(
        f"{s3.url()}/extras.zip: cannot be read: the object has {size + (1 << 20):,} bytes, and "
    )
    assert sum(request.sent for request in s3.store.requests if "extras" in request.key) == size


def test_each_byte_is_asked_for_once(s3: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks, index and companions, in ranges that do not overlap; however many ranges a file has."""
    assert brand("info", s3.url()).code == 0
    monkeypatch.setattr(frontback, "RANGE_BYTES", 1000)
    s3.store.requests.clear()
    assert brand("verify", s3.url()).code == 0
    seen: dict[str, int] = {}
    for request in s3.store.requests:
        name = request.key.removeprefix("bucket/set.brand/")
        if name not in ("brand.json", "share.json"):
            seen[name] = seen.get(name, 0) + request.sent
            assert request.sent <= 1000
    files = {path.relative_to(s3.folder()).as_posix(): path.stat().st_size for path in s3.folder().rglob("*.*")}
    assert seen == {name: size for name, size in files.items() if name != "brand.json" and "." in name}


def test_faults_that_pass_are_not_told(s3: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refusals, broken connections, bodies that end early: everything is found right."""
    monkeypatch.setattr(frontback, "RANGE_BYTES", 20_000)
    some = (Busy(), Busy(429), Reset(100), Short(50), Lost())
    s3.store.faults = Faults(*(Fault(what, "GET", share=0.05) for what in some), seed=3)
    told = brand("verify", s3.url())
    assert told.code == 0, told
    assert sum(request.fault is not None for request in s3.store.requests) > 3


def test_a_store_that_falls_silent_is_not_asked_for_ever(s3: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """After some chunks that it does not give, the rest is left out; each is named with the reason."""
    monkeypatch.setattr(cloud, "PATIENCE_S", 0.2)
    monkeypatch.setattr(frontback, "AT_ONCE", 1)
    assert verifying._SILENT == 3
    s3.store.faults = Faults(Fault(Busy(), key="*/chunks/*"))
    told = brand("verify", s3.url(), "--json")
    errors = told.json["errors"]
    assert [error["chunk"] for error in errors] == [0, 1, 2]
    assert {error["type"] for error in errors} == {"UnreadableError"}
    assert "503" in errors[0]["message"] or "SlowDown" in errors[0]["message"], errors[0]


def test_credentials_that_expire_are_named(s3: Shop) -> None:
    """With what to do."""
    assert brand("info", s3.url()).code == 0
    s3.store.faults = Faults(Fault(Expired(), key="*/chunks/*"))
    told = brand("verify", s3.url())
    assert told.code == 1
    assert "00000000.brand, chunk 0: cannot be read: the credentials have expired: renew them" in told.out


def test_an_object_that_is_replaced_meanwhile_is_named(s3: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """No mixture of two objects is checked."""
    monkeypatch.setattr(frontback, "RANGE_BYTES", 20_000)
    s3.store.faults = Faults(Fault(WrongETag(), "GET", "*/chunks/00000001.brand", only={2}))
    (error,) = brand("verify", s3.url(), "--json").json["errors"]
    assert (error["type"], error["chunk"]) == ("UnreadableError", 1)
    assert "the object was replaced while it was in use" in error["message"]


# -- unpack ------------------------------------------------------------------------------------------------------------


def test_unpack_names_what_it_cannot_read(s3: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not the folder that it writes to."""
    for number, harm in enumerate(HARMS):
        if harm in ("the index is missing", "a companion has changed"):
            continue
        shutil.rmtree(s3.folder())
        shutil.copytree(s3.bucket.parents[1] / "kept", s3.folder())
        damage(s3.folder(), harm)
        told = brand("unpack", s3.url(), tmp_path / str(number))
        assert told.code == 1, (harm, told)
        assert told.err.splitlines()[-1].startswith(f"brand: {s3.url()}/"), (harm, told.err)


@pytest.fixture(autouse=True)
def kept(tmp_path: Path, plain: Path) -> None:
    """The data set once more."""
    shutil.copytree(plain, tmp_path / "kept")
