"""`brand.open`: a data set is read in this process, without PyTorch and without a server, by its path or its URL."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import brand
from brand import BrandError
from brand.stores import store
from tests.shop import SPEECHES, Shop, shop
from tests.storage.support import SAMPLES
from tests.support import FORKS
from tests.tools.objects import Fault, Faults, Reset, Short

pytestmark = pytest.mark.slow


@pytest.fixture(params=SPEECHES)
def any_shop(
    request: pytest.FixtureRequest, plain_set: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Shop]:
    """The ten samples in each kind of store."""
    with shop(request.param, tmp_path, monkeypatch) as opened:
        shutil.copytree(plain_set, opened.folder())
        yield opened


def test_what_it_gives_is_what_was_packed(any_shop: Shop) -> None:
    """Of the folder and of the URL: sizes, fields, columns, one sample, several in any order."""
    for where in (any_shop.folder(), str(any_shop.folder()), any_shop.url()):
        data = brand.open(where)
        assert len(data) == len(SAMPLES)
        assert data.name == str(where)
        assert [data.sample(index) for index in range(10)] == SAMPLES
        assert data.samples([7, 0, 7, 3]) == [SAMPLES[index] for index in (7, 0, 7, 3)]
        assert data.samples(np.array([2, 1])) == [SAMPLES[2], SAMPLES[1]]
        assert data.samples([]) == []
        assert list(data.schema) == list(SAMPLES[0])
        for name in ("int", "float"):
            for field in (field for field, codec in data.schema.items() if codec == name):
                np.testing.assert_array_equal(data.column(field), [sample[field] for sample in SAMPLES])
        assert repr(data).startswith(f"Reader({str(where)!r}, 10 samples, {{")


def test_samples_of_one_call_are_asked_for_together(any_shop: Shop) -> None:
    """Neighbours by one request; nothing but GET; and nothing of the index, which is here."""
    data = brand.open(any_shop.url())
    any_shop.store.requests.clear()
    data.samples(range(10))
    assert set(any_shop.asked()) == {"GET"}
    assert (
        len(any_shop.asked()) == len(any_shop.asked("/chunks/")) == len(list((any_shop.folder() / "chunks").iterdir()))
    )


@pytest.mark.parametrize("wrong", [-1, 10, 10**12])
def test_a_sample_that_is_not_there_is_an_index_error(plain_set: Path, wrong: int) -> None:
    """With the numbers that are."""
    with pytest.raises(IndexError, match="this data set has samples 0 to 9"):
        brand.open(plain_set).sample(wrong)


def test_indices_are_whole_numbers(plain_set: Path) -> None:
    """Nothing is rounded."""
    for wrong in ([1.5], ["1"], [None]):
        with pytest.raises(TypeError, match="indices are whole numbers"):
            brand.open(plain_set).samples(wrong)  # type: ignore[arg-type]


def test_faults_that_pass_are_not_seen(any_shop: Shop) -> None:
    """Broken connections and bodies that end early."""
    data = brand.open(any_shop.url())
    any_shop.store.faults = Faults(Fault(Reset(5), "GET", only={1, 4}), Fault(Short(3), "GET", only={2, 6}))
    assert data.samples(range(10)) == SAMPLES


def test_damage_is_named_by_url(any_shop: Shop) -> None:
    """Chunk and sample, too."""
    data = brand.open(any_shop.url())
    chunk = any_shop.folder() / "chunks" / "00000000.brand"
    stored = bytearray(chunk.read_bytes())
    stored[-1] ^= 1
    chunk.write_bytes(stored)
    with pytest.raises(BrandError, match="the sample's bytes have changed") as caught:
        data.samples(range(10))
    assert str(caught.value).startswith(f"{any_shop.url()}/chunks/00000000.brand, chunk 0, sample ")


def test_it_loads_no_pytorch(any_shop: Shop) -> None:
    """Nor does it start a server."""
    seen = "print([name for name in ('torch', 'grpc') if name in sys.modules])"
    code = f"import brand, sys; brand.open({any_shop.url()!r}).sample(3); {seen}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True)
    assert done.stdout == "[]\n"


@FORKS
def test_a_forked_process_is_refused_with_the_cure(any_shop: Shop) -> None:
    """It would wait for ever: the threads of the library are not forked with it."""
    data = brand.open(any_shop.url())
    data.sample(0)
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        try:
            data.sample(1)
            said = "read"
        except BrandError as error:
            said = f"{type(error).__name__}: {error}"
        os.write(writer, said.encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as told:
        said = told.read()
    os.waitpid(child, 0)
    assert said.startswith("UsageError: this process was forked from one that has read from an object store")
    assert "start it with multiprocessing's 'spawn' or 'forkserver', or read through a BrandDataset" in said
    assert not store._forked
    assert data.sample(1) == SAMPLES[1]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_folder_that_this_user_may_not_enter(photos_set: Path) -> None:
    """The data set's own folder, or one above it: the remedy is named, and helps."""
    assert len(brand.open(photos_set)) == 31  # the other user may not even import the modules
    with tempfile.TemporaryDirectory() as place:  # not below the folder of this user's tests, which is closed to others
        Path(place).chmod(0o755)
        path = Path(place, "above", "photos.brand")
        shutil.copytree(photos_set, path)
        for folder in (path, path.parent):
            folder.chmod(0o700)
        for _ in range(2):
            said = said_to_another_user(path)
            assert said.startswith("UnreadableError: ")
            assert "its owner runs `chmod -R a+rX FOLDER`" in said
            path.parent.chmod(0o755)
        subprocess.run(["chmod", "-R", "a+rX", path], check=True)
        assert said_to_another_user(path) == "31"


def said_to_another_user(name: Path | str) -> str:
    """What a process of user 12345 hears that opens a data set."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.setgroups([])
            os.setgid(12345)
            os.setuid(12345)
            told = str(len(brand.open(name)))
        except BaseException as error:  # noqa: BLE001 - the parent judges it
            told = f"{type(error).__name__}: {error}"
        os.write(writing, told.encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        found = pipe.read()
    os.waitpid(child, 0)
    return found
