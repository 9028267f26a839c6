"""`kill -9` of a conversion at any moment, again and again: it ends with the same bytes, and nothing is left."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pytest

from brand.errors import NotADataSetError
from brand.storage.dataset.dataset import StoredDataSet
from tests.chunker.conversions import Conversions, Options
from tests.leftovers import Leftovers
from tests.rounds import Chance, rounds
from tests.support import brand_process, running_brand, session_processes, tree_digest, wait_until

OPTIONS: Options = {
    "images": (["--chunk-size", 8], ["--chunk-size", 24, "--compression", "zstd"], ["--chunk-bytes", 4000]),
    "audio": (["--chunk-size", 2], ["--chunk-size", 5, "--compression", "zstd"]),
}


@pytest.fixture(scope="module")
def conversions(fashion: Path, clips: Path, tmp_path_factory: pytest.TempPathFactory) -> Conversions:
    """All of them."""
    return Conversions(OPTIONS, fashion / "test", clips, tmp_path_factory.mktemp("undisturbed"))


def chunks(target: Path) -> int:
    """Published chunks."""
    with suppress(FileNotFoundError):
        return sum(name.endswith(".brand") for name in os.listdir(target / "chunks"))
    return 0


def reach(process: subprocess.Popen[bytes], target: Path, count: int) -> None:
    """Wait for so many chunks, or the end."""
    wait_until(lambda: chunks(target) >= count or process.poll() is not None, f"{count} chunks")


@pytest.mark.slow
@rounds(1)
def test_a_conversion_is_killed(conversions: Conversions, tmp_path: Path, left: Leftovers, chance: Chance) -> None:
    """All its processes, its parent or one worker, once to three times; unfinished, it reads as no data set."""
    rng, target = chance.rng, tmp_path / "set"
    kind = rng.choice(["images", "images", "audio"])
    which = rng.randrange(len(OPTIONS[kind]))
    wanted = conversions.undisturbed(kind, which)
    every = sum(name.startswith("chunks/") for name in wanted) - 1
    for _ in range(rng.choice([1, 1, 2, 3])):
        command = conversions.command(kind, which, target, rng.randint(1, 3))
        with running_brand(*command, environment=left.environment) as process:
            reach(process, target, rng.randint(0, every))
            time.sleep(rng.uniform(0, rng.choice([0.005, 0.005, 0.1])))
            left.note_sockets()
            victims = session_processes(process.pid)
            workers = [victim for victim in victims if victim != process.pid]
            for victim in rng.choice([victims, [process.pid], workers[:1] or victims]):
                with suppress(ProcessLookupError):
                    os.kill(victim, signal.SIGKILL)
            process.communicate()
            wait_until(lambda session=process.pid: not session_processes(session), "all end")  # type: ignore[misc]
        left.check()
        if not (target / "brand.json").exists():
            with pytest.raises(NotADataSetError):
                StoredDataSet(target)
    command = conversions.command(kind, which, target, rng.randint(1, 3))
    if not (target / "brand.json").exists() or (target / ".brand-work").exists():
        done = brand_process(*command, env=os.environ | left.environment)
        assert done.code == 0, done.err
    assert tree_digest(target) == wanted
    left.check()
