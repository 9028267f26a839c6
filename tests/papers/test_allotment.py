"""Allotments of a budget of threads: `least` against all others, and Algorithm 1 against a slow model."""

from __future__ import annotations

import heapq
import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.papers.allotment import ALLOTMENTS, greedy, least
from brand.node.decide.decoding.allotment import Queues, algorithm_1, binary_search, by_requests, equal, late_s
from brand.node.decide.decoding.queues import seconds_with
from tests.rounds import examples


@st.composite
def queues(draw: st.DrawFn, most_queues: int = 6, most_threads: int = 12, *, short: bool = False) -> Queues:
    """Any queues: seconds that never rise with the number of threads, any requests, due at once or not.

    There are as many threads as queues or more; with `short`, fewer.
    """
    count = draw(st.integers(1 + short, most_queues))
    budget = draw(st.integers(1, count - 1) if short else st.integers(count, most_threads))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    seconds = random.choice([0.2, 1.0, 3.0]) * random.random((3, count, budget)).round(draw(st.integers(1, 3)))
    requests = random.integers(0, draw(st.sampled_from([1, 2, 300])), (3, count)).astype(np.float64)
    due_s = draw(st.sampled_from([0.05, 0.3, 0.8]))
    dues = due_s * random.uniform(0.2, 2, (3, count)) if draw(st.booleans()) else due_s
    return Queues(np.sort(seconds, axis=2)[..., ::-1], requests, dues)


def one(seconds: list[list[float]], due_s: float = 1.0, requests: list[float] | None = None) -> Queues:
    """Queues of one iteration."""
    return Queues(np.array([seconds]), np.array([requests or [1.0] * len(seconds)]), due_s)


@pytest.mark.parametrize("name", ALLOTMENTS)
@examples(60)
@given(known=queues())
def test_every_queue_has_a_thread_and_the_budget_holds(name: str, known: Queues) -> None:
    """In any scene, for every allotment."""
    threads = ALLOTMENTS[name](known)
    assert threads.shape == known.requests.shape
    assert threads.min() >= 1
    assert threads.sum(axis=1).max() <= known.budget


@pytest.mark.parametrize("other", ALLOTMENTS)
@examples(60)
@given(known=queues(), slack=st.sampled_from([0.0, 0.05, 0.3]))
def test_least_is_never_worse_than_another(other: str, known: Queues, slack: float) -> None:
    """In no iteration of any scene does another allotment end earlier."""
    ends = np.maximum(late_s(known, least(known, slack)).max(axis=1), 0)
    others = np.maximum(late_s(known, ALLOTMENTS[other](known)).max(axis=1), 0)
    assert (ends <= others).all()


@examples(60)
@given(queues(most_queues=3, most_threads=7))
def test_least_and_greedy_are_the_best_of_all_allotments(known: Queues) -> None:
    """Against all ways to share the budget: the same end; `least` has the fewest threads where all are in time."""
    slack = 0.05
    ways = [
        way for way in itertools.product(range(1, known.budget + 1), repeat=known.queues) if sum(way) <= known.budget
    ]
    slow, few = late_s(known, greedy(known)).max(axis=1), least(known, slack)
    for iteration, (seconds, due) in enumerate(zip(known.seconds, known.due, strict=True)):
        late = {way: max(seconds[queue, k - 1] - due[queue] for queue, k in enumerate(way)) for way in ways}
        assert slow[iteration] == min(late.values())
        limits = due * (1 - slack)
        in_time = [sum(way) for way in ways if all(seconds[q, k - 1] <= limits[q] for q, k in enumerate(way))]
        if in_time:
            assert few[iteration].sum() == min(in_time)


@given(queues())
def test_equal_shares_differ_by_at_most_one(known: Queues) -> None:
    """All threads are shared out."""
    threads = equal(known)
    assert threads.sum(axis=1).tolist() == [known.budget] * len(threads)
    assert threads.max() - threads.min() <= 1


@given(queues())
def test_threads_follow_requests(known: Queues) -> None:
    """All threads are shared out; more requests never mean fewer threads; each share is right to within one thread,
    except where the queues that would have none take theirs from others.
    """
    threads = by_requests(known)
    assert threads.sum(axis=1).tolist() == [known.budget] * len(threads)
    for given_, asked in zip(threads.tolist(), known.requests.tolist(), strict=True):
        for (k, r), (other_k, other_r) in itertools.permutations(zip(given_, asked, strict=True), 2):
            assert k >= other_k or r <= other_r
        shares = [known.budget * r / sum(asked) if sum(asked) else known.budget / len(asked) for r in asked]
        if min(shares) >= 1:
            assert all(abs(k - share) < 1 for k, share in zip(given_, shares, strict=True))


@given(queues(), st.sampled_from([0.0, 0.05, 0.5]))
def test_the_search_of_algorithm_1_is_that_of_one_queue_after_the_other(known: Queues, tau: float) -> None:
    """A plain binary search for each queue: late, more threads; early, fewer; the nearest to the training time."""
    found, steps = binary_search(known, tau)
    start = by_requests(known)
    for place in np.ndindex(*found.shape):
        low, high, k, taken = 0, known.budget, int(start[place]), 0

        def off(threads: int, row: tuple[int, ...] = place) -> float:
            return float(known.seconds[row][threads - 1] - known.due[row])

        best = k
        while abs(off(k)) >= tau * known.due[place] and taken < known.budget:
            taken += 1
            low, high = (k, high) if off(k) > 0 else (low, k)
            middle = max(1, (low + high) // 2)
            if middle == k:
                break
            k = middle
            best = k if abs(off(k)) < abs(off(best)) else best
        assert (int(found[place]), int(steps[place])) == (best, taken)


def test_algorithm_1_takes_threads_back_where_it_hurts_least() -> None:
    """Two queues that each want three of four threads: the one that one thread less slows down less gives one."""
    wants_three = one([[9, 5, 1, 1], [9, 2, 1, 1]])
    assert binary_search(wants_three)[0].tolist() == [[3, 3]]
    assert algorithm_1(wants_three).tolist() == [[2, 2]]
    assert algorithm_1(one([[9, 5, 1, 1, 1], [9, 2, 1, 1, 1]])).tolist() == [[3, 2]]


@pytest.mark.parametrize("short", [False, True])
@examples(60)
@given(data=st.data())
def test_algorithm_1_takes_threads_back_one_by_one(short: bool, data: st.DataObject) -> None:
    """In any scene: from the queue that is the least late with one thread less, until the budget holds."""
    known = data.draw(queues(short=short))
    threads = binary_search(known)[0]
    for row in range(len(threads)):
        while threads[row].sum() > known.budget:
            fewer = np.where(threads > 0, late_s(known, threads - 1), np.inf)
            threads[row, fewer[row].argmin()] -= 1
    assert algorithm_1(known).tolist() == threads.tolist()


def test_a_worked_example_of_section_4() -> None:
    """Eight threads, a training step of 1 s, tau 5 %: two GPUs have half of the requests, the first one little work.

    By requests (section 4.2) they get 4, 2, 1 and 1. The first is early with 4 and gets the 1 thread that suffices, the
    second is in time and keeps its 2 (line 5), the third is late and gets the 3 with which it is in time.
    """
    k = np.arange(1, 9)
    seconds = np.stack([1.0 / k, 2.0 / k, 3.0 / k, 1.0 / k])[None]
    known = Queues(seconds, np.array([[40.0, 20.0, 10.0, 10.0]]), 1.0)
    assert by_requests(known).tolist() == [[4, 2, 1, 1]]
    assert algorithm_1(known).tolist() == [[1, 2, 3, 1]]


@pytest.mark.parametrize("name", ALLOTMENTS)
@examples(60)
@given(known=queues(short=True))
def test_where_threads_are_short_each_works_for_another_queue(name: str, known: Queues) -> None:
    """All threads are given away. `greedy`, `least` and Algorithm 1 leave out the queues that are the least late."""
    threads = ALLOTMENTS[name](known)
    assert threads.sum(axis=1).tolist() == [known.budget] * len(threads)
    assert threads.min() >= 0
    if name not in ("equal", "by requests"):
        assert threads.max() == 1
        late = known.seconds[..., 0] - known.due
        for row, had in zip(late.tolist(), threads.tolist(), strict=True):
            served = [end for end, k in zip(row, had, strict=True) if k]
            assert sorted(served) == sorted(row)[-len(served) :]


@given(st.lists(st.floats(0.001, 10), min_size=1, max_size=40), st.integers(1, 8))
def test_work_takes_no_longer_than_is_predicted(pieces: list[float], most: int) -> None:
    """Against threads that take the next piece as they become free; and one thread takes exactly the sum."""
    bound = seconds_with(np.array(sum(pieces)), np.array(max(pieces)), most)
    assert bound.shape == (most,)
    assert bound[0] == pytest.approx(sum(pieces))
    assert (np.diff(bound) <= 1e-9).all()
    for threads in range(1, most + 1):
        free = [0.0] * threads
        for piece in pieces:
            heapq.heappush(free, heapq.heappop(free) + piece)
        assert max(free) <= bound[threads - 1] + 1e-9
