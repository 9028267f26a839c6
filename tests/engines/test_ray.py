"""A conversion on a local Ray cluster of several processes: the bytes of one process, whoever is killed meanwhile."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from brand.chunker import Options, convert_images
from brand.chunker.distributed import plan_images, seal
from tests.rounds import Chance, rounds
from tests.support import (
    LIMIT_S,
    brand,
    brand_process,
    free_port,
    running_brand,
    tree_digest,
    wait_until,
)

pytest.importorskip("ray", reason="Ray is not installed: pip install 'brand-data[ray]'")
pytestmark = pytest.mark.frameworks

CHUNKS = 375
OPEN = {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}
"""The cluster of the tests needs no token, and tells nobody."""

STARTS = 6
"""Ray gives up if its first process has not registered after 30 s, as on a machine that other tests keep busy."""

_WORKER = re.compile(rb"ray::(run|IDLE)\b")


class Cluster:
    """Ray with two cores, whose files are in `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder, port = folder, free_port()
        self.address = f"127.0.0.1:{port}"
        command = [str(Path(sys.executable).with_name("ray")), "start", "--head", "--block", f"--port={port}"]
        command += ["--num-cpus=2", "--include-dashboard=false", f"--temp-dir={folder}", "--node-ip-address=127.0.0.1"]
        # Ray reserves 10001 to 19999, and refuses to start if `port` is one of them. With 0, the system chooses.
        command += ["--min-worker-port=0", "--max-worker-port=0", f"--ray-client-server-port={free_port()}"]
        for _ in range(STARTS):
            with (folder / "log").open("wb") as log:
                self.process = subprocess.Popen(command, stdout=log, stderr=log, env=os.environ | OPEN)
            wait_until(lambda: b"Ray runtime started" in self.log() or self.process.poll() is not None, "Ray starts")
            if self.process.poll() is None:
                return
            self.end()
        raise AssertionError(self.log().decode())

    def log(self) -> bytes:
        """What its command has printed."""
        return (self.folder / "log").read_bytes()

    def processes(self) -> list[int]:
        """All that were started with the folder in their command."""
        return [number for number, _, line in running() if str(self.folder).encode() in line]

    def workers(self) -> list[int]:
        """Those that make chunks, or wait for a task."""
        ours = set(self.processes())
        return [number for number, parent, line in running() if parent in ours and _WORKER.match(line)]

    def end(self) -> None:
        """End all of its processes."""
        for each in (*self.workers(), *self.processes(), self.process.pid):
            with suppress(ProcessLookupError):
                os.kill(each, signal.SIGKILL)
        self.process.wait(LIMIT_S)
        wait_until(lambda: not self.processes(), "Ray ends")


def running() -> list[tuple[int, int, bytes]]:
    """Number, parent and command of each process of this machine."""
    found = []
    for place in Path("/proc").iterdir():
        with suppress(OSError):
            if place.name.isdigit():
                parent = int((place / "stat").read_text().rpartition(")")[2].split()[1])
                found.append((int(place.name), parent, (place / "cmdline").read_bytes()))
    return found


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """One for all tests. The path of its sockets is short."""
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        started = Cluster(Path(folder))
        try:
            yield started
        finally:
            started.end()


@pytest.fixture(autouse=True)
def no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """For the commands of the tests, too."""
    for name, value in OPEN.items():
        monkeypatch.setenv(name, value)


@pytest.fixture(scope="module")
def whole(fashion: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """3,000 pictures in 375 chunks, made by one process."""
    target = tmp_path_factory.mktemp("whole") / "set"
    convert_images(fashion / "train", target, Options(chunk_size=8, jobs=1))
    return tree_digest(target)


def command(source: Path, target: Path, address: str) -> list[object]:
    return ["convert", "images", source, target, "--chunk-size", 8, "--engine", "ray", "--address", address]


def chunks(target: Path) -> int:
    with suppress(FileNotFoundError):
        return sum(name.endswith(".brand") for name in os.listdir(target / "chunks"))
    return 0


def test_the_bytes_are_those_of_one_process(
    cluster: Cluster, fashion: Path, tmp_path: Path, whole: dict[str, str]
) -> None:
    """With a report as of any conversion, and no work folder left."""
    told = brand_process(*command(fashion / "train", tmp_path / "set", cluster.address), "--json")
    assert told.code == 0, told.err
    assert (told.json["samples"], told.json["chunks"], told.json["chunks_found"]) == (3000, CHUNKS, 0)
    assert tree_digest(tmp_path / "set") == whole


def test_killed_workers_cost_nothing(cluster: Cluster, fashion: Path, tmp_path: Path, whole: dict[str, str]) -> None:
    """Ray runs their tasks again; the command notices nothing."""
    target, killed = tmp_path / "set", 0
    with running_brand(*command(fashion / "train", target, cluster.address)) as process:
        while process.poll() is None:
            goal = chunks(target) + 40
            wait_until(lambda goal=goal: chunks(target) >= goal or process.poll() is not None, "chunks")  # type: ignore[misc]
            for victim in cluster.workers()[:1]:
                with suppress(ProcessLookupError):
                    os.kill(victim, signal.SIGKILL)
                    killed += 1
        _, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, err
    assert killed >= 2
    assert tree_digest(target) == whole


def test_a_killed_driver_costs_nothing(cluster: Cluster, fashion: Path, tmp_path: Path, whole: dict[str, str]) -> None:
    """The same command goes on; so does a part on another machine, and `seal` needs neither."""
    target, seen = tmp_path / "set", 0
    for _ in range(2):
        with running_brand(*command(fashion / "train", target, cluster.address)) as process:
            goal = seen + 60
            wait_until(lambda goal=goal: chunks(target) >= goal or process.poll() is not None, "chunks")  # type: ignore[misc]
            assert process.poll() is None, process.communicate()
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate(timeout=LIMIT_S)
        assert chunks(target) >= goal
        seen = chunks(target)
    told = brand("seal", target)
    assert told.code == 1
    assert "run it again" in told.err
    done = brand_process(*command(fashion / "train", target, cluster.address), "--json")
    assert done.code == 0, done.err
    assert done.json["chunks_found"] >= seen
    assert tree_digest(target) == whole


@rounds(2)
def test_drivers_and_workers_are_killed(
    cluster: Cluster, fashion: Path, tmp_path: Path, whole: dict[str, str], chance: Chance
) -> None:
    """At any moment, also while the plan is made or the set is sealed; the last command ends as if nothing was."""
    rng, target = chance.rng, tmp_path / "set"

    def kill_workers(most: int) -> None:
        workers = cluster.workers()
        for victim in rng.sample(workers, min(len(workers), rng.randint(0, most))):
            with suppress(ProcessLookupError):
                os.kill(victim, signal.SIGKILL)

    for _ in range(rng.randint(1, 2)):
        if (target / "brand.json").exists():
            break
        with running_brand(*command(fashion / "train", target, cluster.address)) as process:
            goal = rng.choice([0, chunks(target) + rng.randint(1, CHUNKS)])
            wait_until(lambda goal=goal: chunks(target) >= goal or process.poll() is not None, "chunks")  # type: ignore[misc]
            kill_workers(2)
            time.sleep(rng.uniform(0, rng.choice([0.02, 0.3, 4.0])))
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate(timeout=LIMIT_S)
    if not (target / "brand.json").exists():
        with running_brand(*command(fashion / "train", target, cluster.address)) as process:
            for _ in range(rng.randint(0, 4)):  # few: a new worker takes longer to start than to make all chunks
                time.sleep(rng.uniform(0, 4.0))
                kill_workers(1)
            _, err = process.communicate(timeout=LIMIT_S)
            assert process.returncode == 0, err
    seal(target)
    assert tree_digest(target) == whole


def test_an_error_of_the_source_is_the_error_of_one_process(cluster: Cluster, fashion: Path, tmp_path: Path) -> None:
    """It names the file; Ray does not try again, and shows no traceback of a worker."""
    source = tmp_path / "source"
    shutil.copytree(fashion / "test", source)
    plan_images(source, tmp_path / "set", Options(chunk_size=8))
    for path in source.rglob("*.png"):
        os.utime(path, ns=(1, 1))
    told = brand_process(*command(source, tmp_path / "set", cluster.address))
    assert told.code == 1
    assert ".png: the file changed while it was being converted" in told.err
    assert "Traceback" not in told.err


def test_an_address_without_a_cluster_is_wrong_use(fashion: Path, tmp_path: Path) -> None:
    """At once, and not after the quarter of an hour that Ray tries."""
    told = brand_process(*command(fashion / "test", tmp_path / "set", f"127.0.0.1:{free_port()}"))
    assert told.code == 2
    assert "no Ray cluster can be reached at 127.0.0.1" in told.err
