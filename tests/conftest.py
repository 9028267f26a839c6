"""The small real sets that ship with the repository, as folders and converted; a disk; rounds of chance."""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from brand.chunker import convert_audio, convert_images
from brand.cluster import supervisor
from brand.node.client import connector, session
from brand.stores import cloud
from brand.testing import node as running_node
from tests import places, pythonchild, rounds
from tests.leftovers import Leftovers
from tests.support import LIMIT_S, Disk, options
from tests.tools.objects import S3, ObjectStore

rounds.register_profiles()
os.environ.setdefault("RES_OPTIONS", "timeout:1 attempts:1")  # PyTorch asks for names: some name servers say nothing

ROOT = Path(__file__).resolve().parent.parent


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """`-n auto`: two workers for each core, because many tests wait for processes."""
    return 2 * len(os.sched_getaffinity(0))


def pytest_addoption(parser: pytest.Parser) -> None:
    """How many rounds of chance, and which; and where data sets lie."""
    rounds.add_options(parser)
    places.add_options(parser)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Tests of chance are repeated."""
    rounds.deal(metafunc)


def pytest_sessionstart(session: pytest.Session) -> None:
    """Share the compiling of the test modules between the workers: each one begins with other modules.

    All workers import all modules, and the one that comes first compiles a module for all. In one order they would
    compile each module at the same time.
    """
    worker = getattr(session.config, "workerinput", None)
    if worker is None or sys.dont_write_bytecode:
        return
    modules = sorted(path.relative_to(ROOT) for path in ROOT.glob("tests/**/test_*.py"))
    for module in modules[int(worker["workerid"].removeprefix("gw")) :: worker["workercount"]]:
        with contextlib.suppress(pytest.skip.Exception):
            importlib.import_module(".".join(module.with_suffix("").parts))


def pytest_collection_finish() -> None:
    """What is collected stays until the end: the garbage collector need not walk through it again and again."""
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A case of a test runs in one place; tests of chance, the longest ones, run first, so that no worker ends late."""
    places.leave_out(config, items)
    items.sort(key=lambda item: item.get_closest_marker("rounds") is None)


@pytest.fixture(params=["folder", "store"])
def lies_in(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where the data sets of a test lie that runs `EVERYWHERE` (`tests/places.py`)."""
    where: str = request.param
    if where == "folder":
        return where
    store, root, cache = request.getfixturevalue("served")
    for name, value in places.environment(store, cache).items():
        monkeypatch.setenv(name, value)
    places.at_urls(root, monkeypatch)
    return where


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ObjectStore, Path, Path]]:
    """A store that serves the folder of all tests, that folder, and one for copies of indices."""
    root = tmp_path_factory.getbasetemp()
    with ObjectStore(root, flavour=S3(places.KEYS)) as store:
        yield store, root, tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="session", autouse=True)
def forked_starts() -> Iterator[None]:
    """Fork the Python processes that tests start (`tests/pythonchild.py`)."""
    with pythonchild.forked_starts():
        yield


@pytest.fixture
def real_start() -> Iterator[None]:
    """Really start processes: for a test of what a new interpreter does."""
    with pythonchild.real_starts():
        yield


@pytest.fixture(scope="session", autouse=True)
def patience() -> Iterator[None]:
    """No limit of ours on a start, an answer or an end is over because the machine has much else to do.

    Nor does this process ask a store for anything anew, so requests can be counted.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(connector, "START_LIMIT_S", LIMIT_S)
        patch.setattr(session, "START_LIMIT_S", LIMIT_S)
        patch.setattr(session, "ANSWER_LIMIT_S", LIMIT_S)
        patch.setattr(running_node, "END_LIMIT_S", LIMIT_S)
        patch.setattr(supervisor, "END_LIMIT_S", LIMIT_S)
        patch.setattr(supervisor, "KILL_LIMIT_S", LIMIT_S)
        patch.setattr(cloud, "STALL_S", LIMIT_S)
        patch.setattr(cloud, "EAGER_STALL_S", LIMIT_S)
        yield


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the checkout."""
    return ROOT


@pytest.fixture
def left() -> Iterator[Leftovers]:
    """What processes leave. Their `TMPDIR` is short: they make sockets in it, and the path of one has 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="brand-", dir="/tmp") as folder:
        yield Leftovers(Path(folder))


@pytest.fixture
def one_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three ranks that are threads of this process are ranks of one job, as a launcher starts them."""
    for name, value in {"RANK": "0", "WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1"}.items():
        monkeypatch.setenv(name, value)


@pytest.fixture(scope="session")
def photos() -> Path:
    """31 real pictures in five classes: PNG, JPEG, WebP; modes L, LA, P, RGB, RGBA; one PNG named .jpg."""
    return ROOT / "examples" / "data" / "photos"


@pytest.fixture(scope="session")
def clips() -> Path:
    """41 real clips of six speakers and their transcripts.tsv."""
    return ROOT / "examples" / "data" / "clips"


@pytest.fixture(scope="session")
def fashion(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Fashion-MNIST as PNG: `train` with 10 x 300 and `test` with 10 x 60 pictures."""
    folder = tmp_path_factory.mktemp("fashion")
    with zipfile.ZipFile(ROOT / "examples" / "data" / "fashion-mnist-small.zip") as archive:
        archive.extractall(folder)
    return folder


@pytest.fixture(scope="session")
def photos_set(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The photos, converted in chunks of eight. Not to be changed."""
    target = tmp_path_factory.mktemp("sets") / "photos.brand"
    convert_images(photos, target, options(8))
    return target


@pytest.fixture(scope="session")
def clips_set(clips: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The clips with their transcripts, converted in chunks of eight. Not to be changed."""
    target = tmp_path_factory.mktemp("sets") / "clips.brand"
    convert_audio(clips, target, options(8), transcripts=clips / "transcripts.tsv")
    return target


@pytest.fixture(scope="session")
def fashion_set(fashion: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The 600 test pictures of Fashion-MNIST, converted in chunks of 16. Not to be changed."""
    target = tmp_path_factory.mktemp("sets") / "fashion.brand"
    convert_images(fashion / "test", target, options(16))
    return target


@pytest.fixture
def png(fashion: Path) -> bytes:
    """A small real PNG file."""
    folder = fashion / "test" / "8_bag"
    return (folder / sorted(os.listdir(folder))[0]).read_bytes()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    """A mount point; what is mounted there is gone after the test."""
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("this test mounts a small file system, which needs root")
    folder = tmp_path / "disk"
    folder.mkdir()
    disk = Disk(folder)
    try:
        yield disk
    finally:
        disk.unmount()
