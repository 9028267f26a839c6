"""Processes that prepare: they make what a client makes, whatever files hold, and whatever becomes of them."""

from __future__ import annotations

import io
import logging
import mmap
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import zlib
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from PIL import Image

from brand import BrandLoader, BrandSampler, DecodeAudio, DecodeImage, pack
from brand.errors import DecodeError, ProtocolError, UsageError
from brand.formats.preparation import Preparation, decoders
from brand.node.client.decoded import DecodeSpecs
from brand.node.client.memories import Buffers, Pages
from brand.node.decide.decoding import server_decoding as decoding
from brand.node.decide.decoding.allotment import BY_NAME
from brand.node.decide.state.features import LEAST
from brand.node.memory.arena import Arena
from brand.node.memory.pages import ROW_BYTES
from brand.node.serve import requests
from brand.node.serve.decode_worker import BatchDecoder
from brand.node.serve.server import NodeServer
from brand.node.setup.decoding import ALLOTMENTS, Prepared, for_common
from brand.node.setup.server_spec import ServerSpec
from brand.node.wire import client_messages, messages
from brand.node.wire.client_messages import ClientPrepares, Numbers, unpack
from brand.node.wire.connection import socket_name
from brand.node.wire.decoding import (
    CANNOT,
    ENOUGH,
    HEADER,
    MOST_WANTS,
    PAGE,
    STAGING,
    UNTRIED,
    DecodeSpec,
    Setup,
    pack_values,
    pages_of,
    unpack_chains,
    unpack_sizes,
)
from brand.node.wire.messages import HEAD, Chains, Kind
from brand.node.wire.numbers import NO_CLIENT, RunNumber
from brand.storage.dataset.dataset import StoredDataSet
from brand.storage.io.crew import Crew
from brand.testing.node import RunningServer, random_address, running, running_server
from brand.torch import BrandDataset
from tests.made_orders import order_of
from tests.node.support import RawClient, greeted
from tests.rounds import examples
from tests.support import brand, running_brand, runs, wait_until

SMALL = DecodeImage(size=(16, 24))


def picture(number: int, *, size: tuple[int, int] = (40, 30), kind: str = "JPEG") -> bytes:
    """A picture of its own."""
    rng, file = np.random.default_rng(number), io.BytesIO()
    Image.fromarray(rng.integers(0, 255, (*size, 3), np.uint8)).save(file, kind)
    return file.getvalue()


def png_head(width: int, height: int) -> bytes:
    """A PNG that says to be so large, and has next to nothing."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """120 pictures, every third compressed as PNG. Not to be changed."""
    samples = [{"image": picture(n, kind="PNG" if n % 3 == 0 else "JPEG"), "label": n} for n in range(120)]
    target = tmp_path_factory.mktemp("sets") / "pictures.brand"
    pack(samples, target, {"image": "image", "label": "int"}, chunk_size=8, jobs=1)
    return target


@contextmanager
def preparing(path: Path, *, memory: str = "4MB", preparers: int = 2, **more: Any) -> Iterator[RunningServer]:
    """A server that prepares."""
    with running_server(path, prepared=Prepared(memory, preparers), **more) as server:
        yield server


def epoch(server: RunningServer, prepare: dict[str, Preparation], batch: int = 10, **more: Any) -> dict[int, Any]:
    """The prepared fields of an epoch, by index."""
    data = BrandDataset(server.path, server=server.address, decode=prepare, **more)
    loader = BrandLoader(data, batch, collate_fn=list)
    found = {sample["index"]: {name: sample[name] for name in prepare} for samples in loader for sample in samples}
    data._source.port.client.close()
    return found


def made_by_the_client(path: Path, prepare: dict[str, Preparation]) -> dict[int, Any]:
    """The same, without a server."""
    data = BrandDataset(path, decode=False)
    return {n: {name: how(data[n][name]) for name, how in prepare.items()} for n in range(len(data))}


def same(one: dict[int, Any], other: dict[int, Any]) -> bool:
    """Whether two epochs have the same values, to the byte."""
    return one.keys() == other.keys() and all(
        mine.tobytes() == other[index][name].tobytes()
        and (mine.shape, mine.dtype, mine.flags.writeable) == (other[index][name].shape, other[index][name].dtype, True)
        for index, fields in one.items()
        for name, mine in fields.items()
    )


def processes(server: RunningServer) -> list[int]:
    """Process ids of its preparers."""
    preparers = server.node._work._workers.decode
    assert preparers is not None
    return [found.process.pid for found in list(preparers._processes.values())]


@pytest.mark.slow
@pytest.mark.parametrize(
    "how",
    [
        DecodeImage(shorter=20),
        DecodeImage(size=(16, 24), mode="L"),
        DecodeImage(),
        DecodeImage(size=(7, 9), filter="lanczos"),
    ],
)
def test_pictures_are_those_that_a_client_makes(pictures: Path, how: DecodeImage) -> None:
    """Every byte, shape and dtype, in two epochs, all of them prepared by the server, and each once."""
    with preparing(pictures) as server:
        for _ in range(2):
            assert same(epoch(server, {"image": how}), made_by_the_client(pictures, {"image": how}))
        facts = server.facts()["decoding"]
    assert (facts["decoded"], facts["fetched_decoded"], facts["fetched_encoded"], facts["ended"]) == (120, 240, 0, 0)


@pytest.mark.slow
@pytest.mark.parametrize("how", [DecodeAudio(rate=16_000), DecodeAudio(), DecodeAudio(rate=8_000, mono=False)])
def test_clips_are_those_that_a_client_makes(clips_set: Path, how: DecodeAudio) -> None:
    """As pictures are."""
    with preparing(clips_set, memory="40MB") as server:
        assert same(epoch(server, {"audio": how}), made_by_the_client(clips_set, {"audio": how}))
        facts = server.facts()["decoding"]
    assert facts["fetched_encoded"] == 0 < facts["fetched_decoded"]


@pytest.mark.slow
def test_photos_that_ship_with_the_repository(photos_set: Path) -> None:
    """Real files, larger than a small second memory: what it has no room for, clients prepare."""
    how: dict[str, Preparation] = {"image": DecodeImage(shorter=128)}
    with preparing(photos_set, memory="300kB") as server:
        assert same(epoch(server, how), made_by_the_client(photos_set, how))
        facts = server.facts()["decoding"]
    assert facts["used"] <= facts["limit"] <= 300_000


@pytest.mark.slow
def test_a_sample_with_two_prepared_fields(tmp_path: Path) -> None:
    """Both come prepared, or the client prepares both."""
    samples = [{"one": picture(n), "two": picture(n + 1000)} for n in range(40)]
    pack(samples, tmp_path / "set", {"one": "image", "two": "image"}, chunk_size=8, jobs=1)
    how: dict[str, Preparation] = {"two": DecodeImage(size=(5, 6)), "one": DecodeImage(shorter=9, mode="L")}
    with preparing(tmp_path / "set") as server:
        assert same(epoch(server, how), made_by_the_client(tmp_path / "set", how))
        facts = server.facts()["decoding"]
    assert (facts["decoded"], facts["fetched_decoded"], facts["specs"]) == (80, 40, 2)


@pytest.mark.slow
def test_two_runs_share_what_is_prepared(pictures: Path) -> None:
    """Two jobs of other seeds, with another want each beside one that they share."""
    shared: dict[str, Preparation] = {"image": SMALL}
    with preparing(pictures, memory="20MB") as server:
        for prepare in (shared, shared, {"image": DecodeImage(shorter=8)}):
            assert same(epoch(server, dict(prepare)), made_by_the_client(pictures, dict(prepare)))
        facts = server.facts()["decoding"]
    assert (facts["decoded"], facts["fetched_decoded"]) == (240, 360)


@pytest.mark.slow
@pytest.mark.parametrize(
    "hostile",
    [
        picture(1)[:300],
        png_head(100_000, 100_000),
        png_head(40, 30),
        b"",
        b"no picture at all",
        picture(2, kind="GIF")[:60],
    ],
    ids=["cut JPEG", "huge PNG", "empty PNG", "nothing", "text", "cut GIF"],
)
def test_hostile_files_cost_nothing(tmp_path: Path, hostile: bytes) -> None:
    """Their clients meet them, with the error that names them, or replace them; the others are prepared."""
    samples = [{"image": hostile if n == 13 else picture(n)} for n in range(40)]
    pack(samples, tmp_path / "set", {"image": "image"}, chunk_size=8, jobs=1)
    with preparing(tmp_path / "set") as server:
        with pytest.raises(DecodeError, match="sample 13"):
            epoch(server, {"image": SMALL}, batch=8)
        found = epoch(server, {"image": SMALL}, batch=8, on_error="skip")
        assert len(found) == 39
        facts = server.facts()["decoding"]
        assert len(processes(server)) == 2
    assert facts["ended"] == 0
    assert facts["decoded"] == 39


@pytest.mark.slow
def test_a_preparer_that_hangs_is_ended(pictures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is stopped for longer than a batch may take; the epoch goes on and all samples are right."""
    monkeypatch.setattr(decoding, "BATCH_S", 0.5)
    how: dict[str, Preparation] = {"image": SMALL}
    with preparing(pictures, memory="100kB", preparers=1) as server:
        data = BrandDataset(pictures, server=server.address, decode=how, fields=("index", "image"))
        found = dict[int, Any]()
        for indices, images in BrandLoader(data, 6):
            found |= {n: {"image": image} for n, image in zip(indices.tolist(), images.numpy(), strict=True)}
            if len(found) == 30:
                os.kill(processes(server)[0], signal.SIGSTOP)
        data._source.port.client.close()
        assert same(found, made_by_the_client(pictures, how))
        assert server.facts()["decoding"]["ended"] == 1


@pytest.mark.slow
def test_preparers_that_are_killed_cost_no_sample(pictures: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Killed again and again until no one is left: the epochs are whole, and the log says why clients prepare."""
    how: dict[str, Preparation] = {"image": SMALL}
    expected = made_by_the_client(pictures, how)
    with caplog.at_level(logging.WARNING), preparing(pictures, memory="100kB", preparers=2) as server:
        data = BrandDataset(pictures, server=server.address, decode=how, fields=("index", "image"))
        loader = BrandLoader(data, 6)
        while server.facts()["decoding"]["workers"] or not server.facts()["decoding"]["ended"]:
            found = dict[int, Any]()
            for indices, images in loader:
                found |= {n: {"image": image} for n, image in zip(indices.tolist(), images.numpy(), strict=True)}
                for process in processes(server):
                    with suppress(ProcessLookupError):
                        os.kill(process, signal.SIGKILL)
            assert same(found, expected)
        data._source.port.client.close()
        assert server.facts()["decoding"]["ended"] == 6
    assert "clients decode these samples themselves" in caplog.text


@pytest.mark.slow
def test_nothing_is_left_behind(pictures: Path) -> None:
    """Preparers end with their server, also where that is killed and they decode."""
    with running_brand("serve", pictures, "--decoded-memory", "4MB", "--decode-workers", "2") as process:
        assert process.stdout is not None
        address = process.stdout.readline().decode().strip()
        data = BrandDataset(pictures, server=address, decode={"image": SMALL})
        next(iter(BrandLoader(data, 8, collate_fn=list)))
        (children,) = Path(f"/proc/{process.pid}/task").glob(f"{process.pid}/children")
        ids = children.read_text().split()
        assert len(ids) == 2
        process.kill()
        for pid in ids:
            wait_until(lambda pid=pid: not runs(int(pid)), f"preparer {pid} has ended")  # type: ignore[misc]
        data._source.port.client.close()


@pytest.mark.slow
def test_a_client_can_write_neither_memory(pictures: Path) -> None:
    """Not through the descriptors that it gets, and not by opening the files behind them anew."""
    with preparing(pictures) as server, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.connect(socket_name(server.address))
        client.sendall(messages.pack_json(Kind.HELLO, {"data_set": StoredDataSet(pictures).id, "owner": os.getpid()}))
        _, descriptors, _, _ = socket.recv_fds(client, HEAD.size, 4)
        assert len(descriptors) == 2
        for descriptor in descriptors:
            size = os.fstat(descriptor).st_size
            again = os.open(f"/proc/self/fd/{descriptor}", os.O_RDWR)
            for one in (descriptor, again):
                for act in (
                    lambda one=one: os.pwrite(one, b"x", 0),
                    lambda one=one: os.ftruncate(one, 0),
                    lambda one=one, size=size: mmap.mmap(one, size, prot=mmap.PROT_READ | mmap.PROT_WRITE),
                ):
                    with pytest.raises(PermissionError):
                        act()
                mmap.mmap(one, size, prot=mmap.PROT_READ).close()
                os.close(one)


def test_a_client_with_other_decoders_prepares_for_itself(
    pictures: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """And says so once, with what differs."""
    monkeypatch.setattr(requests, "decoders", lambda codec: decoders(codec) | {"Pillow": "1.0"})
    with caplog.at_level(logging.WARNING), preparing(pictures) as server:
        assert same(epoch(server, {"image": SMALL}), made_by_the_client(pictures, {"image": SMALL}))
        facts = server.facts()["decoding"]
    assert (facts["decoded"], facts["fetched_decoded"], facts["fetched_encoded"], facts["workers"]) == (0, 0, 0, 0)
    assert caplog.text.count("the data server does not prepare") == 1
    assert "it decodes image with {'Pillow': '1.0'" in caplog.text


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"run": 1, "wants": [], "decoders": {}},
        {"run": 1, "wants": {"field": "image"}, "decoders": {}},
        {"run": 1, "wants": [5], "decoders": {}},
        {"run": 1, "wants": [{"field": "image", "codec": "image"}] * (MOST_WANTS + 1), "decoders": {}},
        {"run": 1, "wants": [{"field": "image", "codec": "image"}] * 2, "decoders": {}},
        {"run": 1, "wants": [{"field": "image", "codec": "image", "shorter": 1 << 40}], "decoders": {}},
        {"run": 1, "wants": [{"field": "image", "codec": "image", "size": [1, 2, 3]}], "decoders": {}},
        {"run": 1, "wants": [{"field": "image", "codec": "image", "size": [[1], 2]}], "decoders": {}},
        {"run": 1, "wants": [{"field": "image", "codec": "image", "mode": ["L"]}], "decoders": {}},
        {"run": 1, "wants": [{"field": "image", "codec": "image", "more": 1}], "decoders": {}},
        {"run": 1, "wants": [{"field": "image", "codec": "audio", "mono": 3}], "decoders": {}},
        {"run": 1, "wants": [{"field": "image", "codec": "audio"}], "decoders": {}},
        {"run": 1, "wants": [{"field": "label", "codec": "image"}], "decoders": {}},
        {"run": 1, "wants": [{"field": "none", "codec": "image"}], "decoders": {}},
        {"run": 1, "wants": [{"codec": ["image"]}], "decoders": {}},
        {"run": 99, "wants": [{"field": "image", "codec": "image"}], "decoders": {}},
        {"run": -1, "wants": [{"field": "image", "codec": "image"}], "decoders": {}},
    ],
)
def test_what_no_client_wants_is_refused(pictures: Path, body: dict[str, Any]) -> None:
    """And the next client is served."""
    with preparing(pictures) as server:
        with greeted(server.address, pictures) as client:
            client.order(order_of(pictures))
            client.send(messages.pack_json(Kind.PREPARE, body))
            assert client.receive()[0] == Kind.FAILED
        with greeted(server.address, pictures) as client:
            run = client.order(order_of(pictures))
            client.send(pack_wants(run, (DecodeSpec("image", SMALL),), {"image": decoders("image")}))
            assert client.answer(Kind.PREPARE)["numbers"] == [1]


def test_a_server_that_does_not_prepare_says_so(pictures: Path) -> None:
    """To a client that asks all the same; the clients of `BrandDataset` do not ask."""
    with running_server(pictures) as server:
        with greeted(server.address, pictures) as client:
            run = client.order(order_of(pictures))
            client.send(pack_wants(run, (DecodeSpec("image", SMALL),), {"image": decoders("image")}))
            assert "start it with --decoded-memory" in client.answer(Kind.PREPARE)["why"]
        assert server.facts()["decoding"] is None


@pytest.mark.slow
def test_a_server_that_cannot_start_preparers(pictures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No process or descriptor is left: clients prepare for themselves."""

    def fails(*_: object, **__: object) -> None:
        raise OSError(24, "Too many open files")

    with preparing(pictures) as server:
        monkeypatch.setattr(subprocess, "Popen", fails)
        assert same(epoch(server, {"image": SMALL}), made_by_the_client(pictures, {"image": SMALL}))
        facts = server.facts()["decoding"]
    assert (facts["fetched_decoded"], facts["workers"]) == (0, 0)


# -- what a preparer does with a batch ------------------------------------------------------------------------------


def batch_of(path: Path, places: range, page: int = 512) -> tuple[Setup, np.ndarray[Any, Any], Chains]:
    """Samples in pages, as a server has them."""
    data = StoredDataSet(path)
    rows = data.rows_at(np.array(places))
    memory, counts = [np.zeros((1, page), np.uint8)], list[int]()
    for row, stored in zip(rows, data.stored_bytes(np.array(places)), strict=True):
        assert stored is not None
        whole = row.tobytes() + stored
        counts.append(-(-len(whole) // page))
        memory.append(np.frombuffer(whole + bytes(-len(whole) % page), np.uint8).reshape(-1, page))
    pages = np.concatenate(memory)
    chains = Chains(np.array(counts, np.uint32), np.arange(1, len(pages), dtype=np.int32))
    return Setup(data.header.schema, data.dictionary, page), pages, chains


def test_a_batch_that_fills_the_staging_memory(pictures: Path) -> None:
    """What has no room any more is left for the next batch; a sample that never has room is not prepared."""
    setup, pages, chains = batch_of(pictures, range(5))
    for room, expected in ((PAGE, [UNTRIED] * 4), (2 * PAGE, [1192, UNTRIED, UNTRIED, UNTRIED])):
        preparer = BatchDecoder(setup, pages, np.zeros(room, np.uint8))
        preparer.learn(7, DecodeSpec("image", SMALL))
        assert preparer.prepare(7, chains) == [1192, *expected]
    preparer.learn(8, DecodeSpec("image", DecodeImage(size=(300, 300))))
    assert preparer.prepare(8, chains) == [CANNOT] * 5
    many = BatchDecoder(setup, pages, np.zeros(STAGING, np.uint8))
    many.learn(9, DecodeSpec("image", DecodeImage(size=(2000, 1000))))
    sizes = np.array(many.prepare(9, chains))
    assert (sizes == UNTRIED).tolist() == [False, False, True, True, True]
    assert pages_of(sizes).sum() * PAGE > ENOUGH


def test_samples_that_are_not_what_their_rows_say(pictures: Path) -> None:
    """A changed byte, and a row that says more than there is: not prepared, and the others are."""
    setup, pages, chains = batch_of(pictures, range(4))
    starts = 1 + np.cumsum(chains.counts) - chains.counts
    pages[starts[1], ROW_BYTES + 50] ^= 1
    pages[starts[2], 8:12] = 255
    preparer = BatchDecoder(setup, pages, np.zeros(STAGING, np.uint8))
    preparer.learn(1, DecodeSpec("image", SMALL))
    assert preparer.prepare(1, chains) == [1192, CANNOT, CANNOT, 1192]


@pytest.mark.parametrize(
    "packet",
    [b"", b"S", b"R", b"X" + bytes(24), b"S" + bytes(25), b"S" + struct.pack("<3q", 5, -2, 5)]
    + [b"S" + struct.pack("<3q", 1, size, 1) for size in (STAGING, STAGING + 1, 1 << 62)],
)
def test_a_preparer_that_lies(packet: bytes) -> None:
    """Sizes that cannot be are refused."""
    with pytest.raises(ProtocolError):
        unpack_sizes(packet, 3)


# -- what a client takes for prepared ---------------------------------------------------------------------------------


@pytest.mark.slow
@given(
    shape=st.lists(st.integers(0, 20), min_size=1, max_size=4),
    dtype=st.sampled_from(["u1", "<f4", "<u2", "<i4", "<u4", "i1", "?"]),
    at=st.integers(0, 10_000),
    by=st.integers(1, 255),
)
@examples(200)
def test_a_chain_that_was_changed_is_not_taken(shape: list[int], dtype: str, at: int, by: int) -> None:
    """Any byte of header or values; what was not changed comes back as it was."""
    values = np.arange(np.prod(shape), dtype="i8").astype(dtype).reshape(shape)
    if values.nbytes > 100_000:
        return
    header, data = pack_values(3, 77, values)
    chain = header + data.tobytes()
    count = -(-len(chain) // PAGE)
    memory = np.zeros(2 * count * PAGE, np.uint8)
    for first in (0, count * PAGE):
        memory[first : first + len(chain)] = np.frombuffer(chain, np.uint8)
    memory[at % len(chain)] ^= by
    counts, indices = np.array([count, count]), np.array([77, 77], np.uint64)
    changed, kept = unpack_chains(memory, counts, PAGE, 3, indices)
    assert kept is not None
    assert (kept.dtype, kept.shape, kept.tobytes()) == (values.dtype, values.shape, values.tobytes())
    assert changed is None or changed.tobytes() == values.tobytes()  # of nothing, another shape may be right
    assert unpack_chains(memory, counts, PAGE, 4, indices) == [None, None]
    assert unpack_chains(memory, counts, PAGE, 3, indices + np.uint64(1)) == [None, None]


def test_values_of_another_kind() -> None:
    """No preparation makes them."""
    for values in (np.zeros(3, np.int64), np.zeros((1,) * 5, np.uint8)):
        with pytest.raises(ValueError, match="values of dtype"):
            pack_values(1, 1, values)


def pack_wants(run: int, wants: tuple[DecodeSpec, ...], versions: dict[str, Any]) -> bytes:
    """`PREPARE` of a client."""
    return client_messages.pack(ClientPrepares(NO_CLIENT, RunNumber(run), wants, versions))


def test_wants_travel_as_they_are() -> None:
    """There and back."""
    wants = (
        DecodeSpec("a", DecodeImage(size=(3, 4), mode="L", filter="box")),
        DecodeSpec("b", DecodeAudio(rate=5, mono=False)),
        DecodeSpec("c", DecodeImage(mode="unchanged", upright=True, frame=3)),
    )
    body = pack_wants(5, wants, {"image": {"Pillow": "1"}})[HEAD.size :]
    found = unpack(ClientPrepares, body)
    assert (found.run, found.wants, found.decoders) == (5, wants, {"image": {"Pillow": "1"}})
    numbers = Numbers(NO_CLIENT, (4, 5, 6))
    assert unpack(Numbers, client_messages.pack(numbers)[HEAD.size :]) == numbers
    asking = DecodeSpecs({want.field: want.how for want in wants})
    assert asking.numbers(RunNumber(1), lambda _: memoryview(client_messages.pack(numbers)[HEAD.size :])) == (4, 5, 6)
    for wrong in ({"numbers": [1]}, {"numbers": "12"}, {"numbers": ["1", "2"]}, {}):
        answer = memoryview(messages.pack_json(Kind.PREPARE, wrong)[HEAD.size :])
        with pytest.raises(ProtocolError):
            asking.numbers(RunNumber(1), lambda _, answer=answer: answer)  # type: ignore[misc]


def test_a_server_that_prepares_what_was_not_asked(pictures: Path) -> None:
    """A client that wants nothing hangs up on it."""
    memory = Arena(3, PAGE)
    chains = Chains(np.array([1], np.uint32), np.array([1], np.int32))
    with closing(memory), pytest.raises(ProtocolError, match="fields that were not requested"):
        DecodeSpecs({}).values(
            Pages(memory.pages, Buffers(), Crew(2)), (), chains, np.zeros(1, np.uint64), np.zeros(1, np.intp)
        )


# -- the command ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("--decoded-memory", "much"), "'much' is not a size"),
        (("--decoded-memory", "100B"), "memory of 100 bytes is too small"),
        (("--decode-workers", "2"), "give it memory with --decoded-memory"),
        (("--decoded-memory", "1MB", "--decode-workers", "0"), "is not in the range x>=1"),
        (("--decoded-memory", "1MB", "--decode-allotment", "fair"), "is not one of 'least', 'lobster', 'equal'"),
    ],
)
def test_what_cannot_be_served(pictures: Path, args: tuple[str, ...], says: str) -> None:
    """A wrong use is named."""
    outcome = brand("serve", pictures, *args)
    assert outcome.code == 2
    assert says in outcome.err


def test_preparers_are_at_least_one() -> None:
    """Also from Python."""
    with pytest.raises(UsageError, match="at least one decode worker"):
        Prepared("1MB", 0)
    assert Prepared(1 << 20).count >= 1


def test_an_allotment_has_a_known_name() -> None:
    """The names for users are those of the default and of the functions."""
    assert (LEAST, *BY_NAME) == ALLOTMENTS
    with pytest.raises(UsageError, match="allotment='fair' of decode workers: give 'least', 'lobster' or 'equal'"):
        Prepared("1MB", allotment="fair")
    spec = ServerSpec("set.brand", "unix:@x", prepared=Prepared("1MB", allotment="lobster"))
    assert ServerSpec.from_json(spec.to_json()) == spec


@pytest.mark.slow
@pytest.mark.parametrize("allotment", ["lobster", "equal"])
def test_four_uneven_ranks_train_the_order_of_a_run_without_a_server(allotment: str, tmp_path: Path) -> None:
    """One rank has all large pictures; each sample is prepared once, and the statistics tell for which rank."""
    path, ranks = tmp_path / "uneven.brand", range(4)
    more: dict[str, Any] = {"order": "uniform", "fields": ("index", "image"), "decode": {"image": SMALL}}

    def drawn(data: list[BrandDataset]) -> list[list[tuple[int, bytes]]]:
        samplers = [BrandSampler(data[rank], num_replicas=4, rank=rank, seed=3) for rank in ranks]
        loaders = [BrandLoader(data[rank], 4, sampler=samplers[rank], collate_fn=list) for rank in ranks]
        steps = list(zip(*loaders, strict=True))
        return [[(n, image.tobytes()) for step in steps for n, image in step[rank]] for rank in ranks]

    def fill(large: set[int]) -> None:
        samples = ({"image": picture(n, size=(240, 240) if n in large else (16, 16))} for n in range(64))
        pack(samples, path, {"image": "image"}, chunk_size=8, jobs=1)

    fill(set())
    large = {index for index, _ in drawn([BrandDataset(path, server="none", **more)] * 4)[0]}
    shutil.rmtree(path)
    fill(large)
    expected = drawn([BrandDataset(path, server="none", **more)] * 4)
    assert {index for index, _ in expected[0]} == large
    with running_server(path, memory=1.0, prepared=Prepared("1MB", 4, allotment=allotment)) as server:
        data = [BrandDataset(path, server=server.address, job="uneven", **more) for _ in ranks]
        assert drawn(data) == expected
        facts = data[0].stats()["decoding"]
        for each in data:
            each._source.port.client.close()
    assert (facts["allotment"], facts["decoded"], facts["fetched_decoded"]) == (allotment, 64, 64)
    assert [(each["job"], each["rank"]) for each in facts["ranks"]] == [("uneven", rank) for rank in ranks]
    assert sum(each["decoded"] for each in facts["ranks"]) == 64
    assert all(each["worker_s"] > 0 for each in facts["ranks"])


def test_what_a_common_server_prepares_with() -> None:
    """A quarter of the memory for samples, at least 256 MB, and at most half of what is free beside it."""
    mb = 1 << 20
    for memory, free, expected in (
        (100 * mb, 10_000 * mb, 256 * mb),
        (4000 * mb, 10_000 * mb, 1000 * mb),
        (4000 * mb, 4100 * mb, 50 * mb),
        (4000 * mb, 100 * mb, mb),
    ):
        found = for_common(memory, 1 << 40, free)
        assert (found.memory, found.least_runs) == (expected, 2)
    assert for_common(0.25, 8000 * mb, 1 << 40).memory == 500 * mb


@pytest.mark.slow
def test_a_common_server_prepares_from_the_second_job_on(pictures: Path) -> None:
    """Its first job starts it and decodes; with another one that wants the same, it decodes once for both."""
    more: dict[str, Any] = {"server": "common", "decode": {"image": SMALL}, "fields": ("index", "image")}
    expected = made_by_the_client(pictures, {"image": SMALL})

    def drawn(data: BrandDataset) -> dict[str, Any]:
        found = dict[int, Any]()
        for indices, images in BrandLoader(data, 8):
            found |= {n: {"image": image} for n, image in zip(indices.tolist(), images.numpy(), strict=True)}
        assert same(found, expected)
        facts: dict[str, Any] = data.stats()["decoding"]
        return facts

    one, two = (BrandDataset(pictures, job=name, **more) for name in ("one", "two"))
    try:
        facts = drawn(one)
        assert (facts["decoded"], facts["fetched_decoded"], facts["workers"]) == (0, 0, 0)
        facts = drawn(two)
        assert facts["decoded"] == 120
        assert facts["fetched_decoded"] > 0 < facts["workers"]
        assert drawn(one)["decoded"] == 120
    finally:
        os.kill(one.stats()["process"], signal.SIGKILL)
        one._source.port.client.close()
        two._source.port.client.close()


@pytest.mark.slow
def test_a_server_that_prepares_is_replayed(pictures: Path, tmp_path: Path) -> None:
    """Its record holds what preparers said."""
    record = tmp_path / "record"
    node = NodeServer(ServerSpec(pictures, random_address(), memory=0.5, record=record, prepared=Prepared("1MB", 1)))
    with running(str(pictures), node) as server:
        assert len(epoch(server, {"image": SMALL})) == 120
    command = [sys.executable, "-m", "tests.tools.replay", str(record), str(pictures)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert "the same decisions" in done.stdout, done.stderr


def test_garbage_from_a_raw_client(pictures: Path) -> None:
    """A PREPARE of random bytes: refused, and the server goes on."""
    rng = np.random.default_rng(0)
    with preparing(pictures) as server:
        for size in (0, 1, 50, 1000):
            with RawClient(server.address) as client:
                client.hello(StoredDataSet(pictures).id)
                client.send(messages.frame(Kind.PREPARE, rng.bytes(size)))
                assert client.receive()[0] == Kind.FAILED
        assert server.facts()["decoding"]["specs"] == 0
    assert HEADER.itemsize % 8 == 0, "values are aligned"
