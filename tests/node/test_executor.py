"""The threads of a server: jobs of one part and of several, their results, and their errors."""

from __future__ import annotations

import select
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from brand.node.serve.executor import Executor, Readers
from brand.storage.io.vectored import LocalFiles
from tests.support import LIMIT_S


@contextmanager
def executor(depth: int) -> Iterator[Executor]:
    """Threads that read nothing."""
    made = Executor(depth, lambda: Readers(LocalFiles(str)))
    try:
        yield made
    finally:
        made.close()


def finish(made: Executor, ended: list[Any], count: int) -> None:
    """Be the loop until so many jobs have ended."""
    while len(ended) < count:
        assert select.select([made.wake], [], [], LIMIT_S)[0], "no job ends"
        made.finish()


@pytest.mark.parametrize("depth", [1, 2, 5])
@pytest.mark.parametrize("parts", [1, 2, 7, 40])
def test_each_part_runs_once_and_the_job_ends_once(depth: int, parts: int) -> None:
    """With the errors of the parts that failed. Jobs do not mix."""
    ran: list[tuple[int, int]] = []
    ended: list[tuple[int, dict[int, str]]] = []

    def start(job: int) -> None:
        def part(readers: Readers, number: int) -> None:
            assert isinstance(readers.storage, LocalFiles)
            ran.append((job, number))
            if number % 3 == job:
                raise OSError(f"part {number} of {job}")

        made.share(part, parts, lambda errors: ended.append((job, {n: str(e) for n, e in errors.items()})))

    with executor(depth) as made:
        for job in range(4):
            start(job)
        finish(made, ended, 4)
        made.finish()
    assert sorted(ran) == [(job, number) for job in range(4) for number in range(parts)]
    assert dict(ended) == {job: {n: f"part {n} of {job}" for n in range(parts) if n % 3 == job} for job in range(4)}
    assert len(ended) == 4


def test_parts_run_in_as_many_threads_as_there_are() -> None:
    """Each of four parts waits for the other three."""
    together, ended = threading.Barrier(4), list[Any]()
    with executor(4) as made:
        made.share(lambda _, __: together.wait(LIMIT_S), 8, ended.append)
        finish(made, ended, 1)
    assert ended == [{}]


def test_one_thread_runs_parts_in_order_and_jobs_in_turn() -> None:
    """A job that waits behind a shared one runs when all its parts have run."""
    ran, ended = list[Any](), list[Any]()
    with executor(1) as made:
        made.share(lambda _, number: ran.append(number), 5, ended.append)
        made.read(lambda _: ran.append("alone"), lambda result, error: ended.append((result, error)))
        finish(made, ended, 2)
    assert ran == [0, 1, 2, 3, 4, "alone"]
    assert ended == [{}, (None, None)]


def test_an_error_of_a_job_comes_with_its_end() -> None:
    """Of reads and of plans."""
    ended = list[Any]()

    def fail(_: object) -> None:
        raise OSError("gone")

    with executor(2) as made:
        made.read(fail, lambda result, error: ended.append((result, str(error))))
        made.plan(fail, lambda result, error: ended.append((result, str(error))))
        finish(made, ended, 2)
    assert ended == [(None, "gone")] * 2
