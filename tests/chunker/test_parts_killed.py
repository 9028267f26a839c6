"""Parts whose drivers and workers are killed at any moment have the bytes of one process, once run again and sealed."""

from __future__ import annotations

import os
import signal
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from tests.chunker.conversions import Conversions, Options
from tests.leftovers import Leftovers
from tests.rounds import Chance, rounds
from tests.support import LIMIT_S, brand_process, running_brand, session_processes, tree_digest, wait_until

OPTIONS: Options = {
    "images": (["--chunk-size", 8], ["--chunk-size", 24, "--compression", "zstd"], ["--chunk-bytes", 4000]),
    "audio": (["--chunk-size", 2], ["--chunk-size", 5, "--on-error", "skip"]),
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


@pytest.mark.slow
@rounds(2)
def test_parts_are_killed(conversions: Conversions, tmp_path: Path, left: Leftovers, chance: Chance) -> None:
    """One to three parts work at a time; each loses its driver, a worker, or all; `seal` is killed, too."""
    rng, target = chance.rng, tmp_path / "set"
    kind = rng.choice(["images", "images", "audio"])
    which, of = rng.randrange(len(OPTIONS[kind])), rng.choice([1, 2, 3, 5])
    wanted = conversions.undisturbed(kind, which)
    every = sum(name.startswith("chunks/") for name in wanted)

    def command(number: int) -> list[object]:
        return [*conversions.command(kind, which, target, rng.randint(1, 3)), "--task", f"{number}/{of}"]

    for _ in range(rng.choice([1, 2])):
        with ExitStack() as stack:
            some = rng.sample(range(of), rng.randint(1, min(of, 3)))
            parts = [
                stack.enter_context(running_brand(*command(number), environment=left.environment)) for number in some
            ]
            goal = chunks(target) + rng.randint(0, every // 2)
            wait_until(
                lambda goal=goal, parts=parts: (  # type: ignore[misc]
                    chunks(target) >= goal or all(part.poll() is not None for part in parts)
                ),
                "some chunks",
            )
            time.sleep(rng.uniform(0, rng.choice([0.005, 0.1, 0.5])))
            for part in parts:
                victims = session_processes(part.pid)
                workers = [victim for victim in victims if victim != part.pid]
                for victim in rng.choice([victims, [part.pid], workers[:1] or victims]):
                    with suppress(ProcessLookupError):
                        os.kill(victim, signal.SIGKILL)
            for part in parts:
                part.communicate(timeout=LIMIT_S)
                wait_until(lambda part=part: not session_processes(part.pid), "all end")  # type: ignore[misc]
        left.check()
        assert not (target / "brand.json").exists()
    for number in rng.sample(range(of), of):
        done = brand_process(*command(number), env=os.environ | left.environment)
        assert done.code == 0, done.err
    with running_brand("seal", target, environment=left.environment) as process:
        time.sleep(rng.uniform(0, 0.6))
        os.kill(process.pid, signal.SIGKILL)
        process.communicate(timeout=LIMIT_S)
    done = brand_process("seal", target, env=os.environ | left.environment)
    assert done.code == 0, done.err
    assert tree_digest(target) == wanted
    left.check()
