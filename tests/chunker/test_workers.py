"""Tasks in processes: the same results for any number of them, errors come home, and nothing is left running."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from brand.chunker.plan.plan import default_jobs
from brand.chunker.sources.workers import run_tasks
from brand.errors import InterruptedConversionError, SourceError
from tests.support import wait_until


def add(context: int, task: int) -> int:
    return context + task * task


def fail_at(bad: int, task: int) -> int:
    if task == bad:
        raise SourceError(f"file-{task}", "is bad", hint="throw it away")
    return task


def die_at(bad: int, task: int) -> int:
    if task == bad:
        os.kill(os.getpid(), signal.SIGKILL)
    return task


def who(folder: Path, task: int) -> int:
    (folder / str(os.getpid())).touch()
    return os.getpid()


def interrupt_and_count(_: None, task: int) -> int:
    os.kill(os.getpid(), signal.SIGINT)
    return task


def gone(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.mark.parametrize("jobs", [1, 2, 4])
def test_results_are_the_same_for_any_number_of_processes(jobs: int) -> None:
    """Each task once, with its own result."""
    assert sorted(run_tasks(add, 7, range(100), jobs=jobs)) == [(task, 7 + task * task) for task in range(100)]


def test_one_job_runs_here_and_in_order(tmp_path: Path) -> None:
    """No process is started for one job."""
    results = list(run_tasks(who, tmp_path, range(5), jobs=1))
    assert results == [(task, os.getpid()) for task in range(5)]


def test_several_jobs_run_elsewhere(tmp_path: Path) -> None:
    """Never in the parent, in at most as many processes as asked for, which are gone at the end."""
    workers = {process for _, process in run_tasks(who, tmp_path, range(50), jobs=3)}
    assert os.getpid() not in workers
    assert 1 <= len(workers) <= 3
    assert all(gone(process) for process in workers)


@pytest.mark.parametrize("jobs", [1, 2, 4])
def test_no_tasks_no_results(jobs: int) -> None:
    """An empty run ends at once."""
    assert list(run_tasks(add, 0, [], jobs=jobs)) == []


@pytest.mark.parametrize("jobs", [1, 2, 4])
def test_an_error_in_a_task_is_raised_here_with_its_attributes(jobs: int) -> None:
    """A `SourceError` crosses the process border whole."""
    with pytest.raises(SourceError, match=r"file-5: is bad\. throw it away") as caught:
        list(run_tasks(fail_at, 5, range(40), jobs=jobs))
    assert (caught.value.path, caught.value.reason, caught.value.hint) == ("file-5", "is bad", "throw it away")


@pytest.mark.parametrize("jobs", [2, 4])
def test_a_worker_that_is_killed_is_an_interrupted_conversion(jobs: int) -> None:
    """The message says that a worker died, and that the same command goes on."""
    with pytest.raises(InterruptedConversionError, match=r"worker process died.*same command again"):
        list(run_tasks(die_at, 10, range(200), jobs=jobs))


@pytest.mark.parametrize("jobs", [2, 3])
def test_only_a_few_tasks_are_taken_ahead(jobs: int) -> None:
    """An endless supply of tasks is taken as results are taken, four a worker ahead."""
    taken = 0

    def supply() -> Iterator[int]:
        nonlocal taken
        for task in itertools.count():
            taken += 1
            yield task

    results = run_tasks(add, 0, supply(), jobs=jobs)
    for count in range(1, 30):
        next(results)
        assert taken <= count + 4 * jobs
    results.close()


def test_stopping_early_ends_the_processes(tmp_path: Path) -> None:
    """Who takes no more results leaves no process behind."""
    results = run_tasks(who, tmp_path, itertools.count(), jobs=2)
    next(results)
    results.close()
    workers = [int(path.name) for path in tmp_path.iterdir()]
    assert workers
    wait_until(lambda: all(gone(process) for process in workers), "the workers end")


def test_workers_leave_ctrl_c_to_the_parent() -> None:
    """SIGINT in a worker does nothing."""
    assert sorted(run_tasks(interrupt_and_count, None, range(6), jobs=2)) == [(task, task) for task in range(6)]


def test_the_default_is_the_cores_this_process_may_use() -> None:
    """A container's or taskset's limit counts, not the machine's cores."""
    allowed = os.sched_getaffinity(0)
    assert default_jobs() == len(allowed)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        assert default_jobs() == 1
    finally:
        os.sched_setaffinity(0, allowed)


def test_workers_that_no_longer_listen_do_not_hold_up_the_end() -> None:
    """As where one was killed that held the lock of the queue: all tasks are done, and nobody is asked to end."""
    tasks = run_tasks(add, 7, range(20), jobs=3)
    assert len(list(itertools.islice(tasks, 20))) == 20
    workers = [process.pid for process in multiprocessing.active_children() if process.pid is not None]
    for worker in workers:
        os.kill(worker, signal.SIGSTOP)
    assert list(tasks) == []
    assert workers
    assert all(map(gone, workers))
