"""A gate runs every task once, in order, at most as many at a time as its limit says, and never blocks."""

from __future__ import annotations

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from brand.torch.loader.threads import Gate
from tests.rounds import Chance, rounds
from tests.support import LIMIT_S, wait_until

NUMBERS = """
import threading, torch
from brand.torch.loader.threads import pool_of

torch.set_num_threads(3)
together, found = threading.Barrier(16), []

def number():
    together.wait(60)
    torch.stack(20 * [torch.zeros(100_000)])
    return torch.get_num_threads()

with pool_of(16) as pool:
    found += {task.result(60) for task in [pool.submit(number) for _ in range(16)]}
later = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
later.start()
later.join()
print(*found, torch.get_num_threads())
"""
"""PyTorch's threads in the threads of a pool that begin at once, in one that begins later, and in the first one."""

FORKS = """
import os, threading
from brand.torch.loader.threads import pool_of

stop = threading.Event()

def begin_pools():
    while not stop.is_set():
        with pool_of(2) as pool:
            pool.submit(int)

thread = threading.Thread(target=begin_pools)
thread.start()
found = set()
for _ in range(60):
    child = os.fork()
    if not child:
        try:
            pool_of(1).submit(int).result(20)
            os._exit(0)
        finally:
            os._exit(1)
    found.add(os.waitpid(child, 0)[1])
stop.set()
thread.join()
print(*found)
"""
"""How processes end that are forked while another thread begins pools, and begin one themselves."""


class Held:
    """Tasks that run until they are let go, and count who runs."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.running: list[int] = []
        self.begun: list[int] = []
        self.let_go = threading.Semaphore(0)

    def run(self, number: int) -> None:
        """Run until `let_go`."""
        with self.lock:
            self.running.append(number)
            self.begun.append(number)
        assert self.let_go.acquire(timeout=LIMIT_S)
        with self.lock:
            self.running.remove(number)


def test_at_most_the_limit_runs() -> None:
    """A larger limit starts more at once; a smaller one starts none until enough have ended."""
    held = Held()
    with ThreadPoolExecutor(4) as pool:
        gate = Gate(pool, 1)
        for number in range(10):
            gate.submit(partial(held.run, number))
        wait_until(lambda: held.begun == [0], "one task")
        gate.set_limit(3)
        wait_until(lambda: len(held.begun) == 3, "three tasks")
        gate.set_limit(1)
        held.let_go.release(2)
        wait_until(lambda: len(held.running) == 1, "two tasks have ended")
        assert sorted(held.begun) == [0, 1, 2]
        assert repr(gate) == "Gate(runners=1, limit=1, tasks=7 items)"
        held.let_go.release(8)
        wait_until(lambda: len(held.begun) == 10 and not held.running, "all tasks")
        assert held.begun[3:] == list(range(3, 10))
    assert repr(gate) == "Gate(runners=0, limit=1, tasks=0 items)"


@rounds(20)
def test_every_task_runs_whatever_the_limit_does(chance: Chance) -> None:
    """Several threads submit, the limit changes all the time, and no task is lost or runs beyond the largest limit."""
    done, running, most = [0] * 400, threading.Semaphore(5), 5
    limits = [chance.rng.randint(1, most) for _ in range(300)]
    too_many: list[int] = []

    def task(number: int) -> None:
        if not running.acquire(blocking=False):
            too_many.append(number)
        done[number] += 1
        running.release()

    with ThreadPoolExecutor(8) as pool:
        gate = Gate(pool, 1)

        def submit(first: int) -> None:
            for number in range(first, 400, 4):
                gate.submit(partial(task, number))

        submitters = [threading.Thread(target=submit, args=(first,)) for first in range(4)]
        for thread in submitters:
            thread.start()
        for limit in limits:
            gate.set_limit(limit)
        for thread in submitters:
            thread.join(LIMIT_S)
        wait_until(lambda: done == [1] * 400, "each task once")
    assert not too_many


def test_only_threads_of_the_pool_work_alone() -> None:
    """PyTorch works with one thread in each of them, also once it has done something, and elsewhere as before."""
    command = [sys.executable, "-c", NUMBERS]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=LIMIT_S)
    assert done.stdout == "1 3 3\n"


def test_a_process_that_is_forked_while_a_pool_begins_can_begin_one() -> None:
    """It waits for no lock that a thread of its parent holds."""
    command = [sys.executable, "-W", "ignore", "-c", FORKS]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=LIMIT_S)
    assert done.stdout == "0\n"
