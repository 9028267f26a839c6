"""Processes that start and end together: their output, their readiness, their end. Nodes are shell scripts here."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brand.cluster import supervisor
from brand.cluster.launcher import Start
from brand.cluster.serving import everybody
from brand.cluster.supervisor import LineBuffer, Supervisor
from brand.errors import ServerError
from tests.support import LIMIT_S, session_processes, wait_until

TOKEN = "a token that is long enough"
LISTENS = 'read token; echo "unix:@node$0"; '
MEETS = f'echo "{everybody(2)}" >&2; '
STAYS = "cat > /dev/null"
"""Until its input ends."""


class Watched:
    """A supervisor of shell scripts, and what it has said."""

    def __init__(self, heard: Callable[[], object] = lambda: None) -> None:
        self.said: list[str] = []
        self._heard = heard
        """Called after each line."""
        self.addresses: list[str] = []
        self.ready = threading.Event()
        self.error: BaseException | None = None
        self.supervisor = Supervisor(TOKEN, self._say, self._ready)

    def _say(self, line: str) -> None:
        self.said.append(line)
        self._heard()

    def _ready(self, addresses: list[str]) -> None:
        self.addresses = addresses
        self.ready.set()

    def run(self, *scripts: str) -> None:
        """Run them to their end."""
        with closing(self.supervisor):
            self.supervisor.run([Start(f"place {node}", ["sh", "-c", s, str(node)]) for node, s in enumerate(scripts)])

    @contextmanager
    def running(self, *scripts: str) -> Iterator[None]:
        """Run them in a thread, from when they are ready; stop them at the end of the block."""

        def run() -> None:
            try:
                self.run(*scripts)
            except BaseException as error:  # noqa: BLE001 - looked at by the thread of the test
                self.error = error

        thread = threading.Thread(target=run)
        thread.start()
        try:
            assert self.ready.wait(LIMIT_S)
            yield
        finally:
            self.supervisor.stop()
            thread.join(LIMIT_S)
        assert not thread.is_alive()

    def stopped_well(self) -> bool:
        """Whether `running` ended without an error."""
        if self.error is not None:
            raise self.error
        return True


@pytest.mark.slow
@given(st.binary(), st.lists(st.integers(1, 9)))
def test_lines_are_whole_however_they_come(data: bytes, cuts: list[int]) -> None:
    """Cut into any pieces, the lines are those of the whole; the last one needs no end."""
    lines, found, rest = LineBuffer(), [], data
    for cut in cuts:
        piece, rest = rest[:cut], rest[cut:]
        found += lines.take(piece) if piece else []
    found += (lines.take(rest) if rest else []) + lines.take(b"")
    expected = data.split(b"\n")
    expected = expected if expected[-1] else expected[:-1]
    assert found == [line.decode(errors="backslashreplace").rstrip("\r") for line in expected]


def test_a_line_without_an_end_is_cut() -> None:
    """No program can fill the memory."""
    lines = LineBuffer()
    sizes = [len(line) for _ in range(100) for line in lines.take(b"x" * 10_000)]
    assert sum(sizes) > 900_000
    assert max(sizes) < 100_000


def test_it_tells_when_all_are_ready_and_stops_them() -> None:
    """The addresses by node; every other line with the node's number; none of them runs afterwards."""
    watched = Watched()
    with watched.running(LISTENS + MEETS + STAYS, "echo hello; " + LISTENS + "sleep 0.1; " + MEETS + STAYS):
        assert watched.addresses == ["unix:@node0", "unix:@node1"]
    assert watched.stopped_well()
    assert sorted(watched.said[:3]) == [f"[node 0] {everybody(2)}", f"[node 1] {everybody(2)}", "[node 1] hello"]
    assert watched.said[3:] == ["stopping 2 nodes"]


def test_each_node_gets_the_token() -> None:
    """As the first line of its input."""
    watched = Watched()
    with watched.running(*['read token; echo "unix:@$token"; ' + MEETS + STAYS] * 2):
        assert watched.addresses == [f"unix:@{TOKEN}"] * 2


@pytest.mark.parametrize(
    ("end", "fate"), [("exit 3", "ended with exit code 3"), ("kill -9 $$", "was ended by signal 9")]
)
def test_where_one_ends_all_are_stopped(end: str, fate: str) -> None:
    """Also one that ends well; the error names it, and what it said is shown before."""
    watched = Watched()
    with pytest.raises(ServerError, match=rf"^node 1 at place 1 {fate}, and the other nodes were stopped$"):
        watched.run(LISTENS + STAYS, LISTENS + "echo last words >&2; " + end)
    assert watched.said == ["[node 1] last words", "stopping 1 node"]
    assert not watched.ready.is_set()


def test_after_they_were_ready_the_others_go_on(tmp_path: Path) -> None:
    """What becomes of a node is said at once, and is the launcher's failure when all are stopped."""
    watched, go = Watched(), tmp_path / "go"
    fate = "node 1 at place 1 was ended by signal 9"
    with watched.running(
        LISTENS + MEETS + STAYS, LISTENS + MEETS + f"until test -e {go}; do sleep 0.02; done; kill -9 $$"
    ):
        go.touch()
        wait_until(lambda: f"{fate}; 1 of 2 nodes continue without it" in watched.said, "the end is told")
        assert watched.error is None
    assert str(watched.error) == f"{fate}; the other nodes continued without it"
    assert watched.said[-1] == "stopping 1 node"


def test_where_none_is_left_it_ends(tmp_path: Path) -> None:
    """With the fate of each node."""
    watched, go = Watched(), tmp_path / "go"
    waits = f"until test -e {go}; do sleep 0.02; done; exit "
    with watched.running(LISTENS + MEETS + waits + "3", LISTENS + MEETS + waits + "4"):
        go.touch()
        wait_until(lambda: watched.error is not None, "the end is noticed")
    fates = [f"node {node} at place {node} ended with exit code {node + 3}" for node in (0, 1)]
    assert str(watched.error) in (f"{'; '.join(order)}: no node is left" for order in (fates, fates[::-1]))


@pytest.mark.slow
def test_who_is_late_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that says nothing, and one that waits for the others; the limit is over once all have said what they will."""
    over = threading.Event()
    monkeypatch.setattr(supervisor, "time", SimpleNamespace(monotonic=lambda: 61.0 if over.is_set() else 0.0))
    watched = Watched(lambda: over.set() if len(watched.said) == 3 else None)
    says = 'echo "this is all" >&2; '
    with pytest.raises(ServerError) as caught:
        watched.run(LISTENS + MEETS + STAYS, says + STAYS, LISTENS + says + STAYS)
    assert str(caught.value) == (
        "after 60 s not all of 3 nodes are connected, so all were stopped: node 1 at place 1 does not listen; "
        "node 0 at place 0 does not reach all other nodes; node 2 at place 2 does not reach all other nodes"
    )


def test_who_does_not_end_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """First by SIGTERM, then by SIGKILL, with all that it has started; SIGTERM has as long as it takes to end one."""
    watched, sessions, clock = Watched(), dict[str, int](), itertools.count(time.monotonic() + 2 * LIMIT_S, 2 * LIMIT_S)

    def now_s() -> float:
        waited_for = "[node 0]" in sessions and not Path(f"/proc/{sessions['[node 0]']}").exists()
        return next(clock) if waited_for else time.monotonic()

    monkeypatch.setattr(supervisor, "END_LIMIT_S", 0.1)
    monkeypatch.setattr(supervisor, "KILL_LIMIT_S", LIMIT_S)
    monkeypatch.setattr(supervisor, "time", SimpleNamespace(monotonic=now_s))
    deaf = LISTENS + 'echo "$$" >&2; ' + MEETS
    with watched.running(deaf + "exec sleep 1000", "trap '' TERM; " + deaf + "while true; do sleep 0.05; done"):
        sessions |= {line[:8]: int(line[9:]) for line in watched.said if line[9:].isdigit()}
    assert watched.stopped_well()
    assert [line for line in watched.said if "does not end" in line] == [
        *(f"node {node} at place {node} does not end, and is sent SIGTERM" for node in (0, 1)),
        "node 1 at place 1 does not end, and is sent SIGKILL",
    ]
    assert len(sessions) == 2
    wait_until(lambda: not any(map(session_processes, sessions.values())), "all of them end")


def test_at_the_end_only_who_fails_has_the_last_word() -> None:
    """That others go away is no news then."""
    watched = Watched()
    alive = LISTENS + MEETS + STAYS
    with watched.running(alive + "; echo others are gone >&2", alive + "; echo trouble >&2; exit 1"):
        pass
    assert watched.stopped_well()
    assert "[node 1] trouble" in watched.said
    assert not any("others are gone" in line for line in watched.said)


def test_a_command_that_is_not_there_is_named() -> None:
    """Those before it are stopped."""
    watched = Watched()
    starts = [Start("here", ["sh", "-c", STAYS]), Start("there", ["no-such-ssh", "there"])]
    says = r"^node 1 at there cannot be started: no-such-ssh: No such file or directory$"
    with pytest.raises(ServerError, match=says), closing(watched.supervisor):
        watched.supervisor.run(starts)
    assert watched.said == ["stopping 1 node"]


def test_one_that_is_stopped_before_it_begins_starts_nothing(tmp_path: Path) -> None:
    """A Ctrl-C may come at any time."""
    watched = Watched()
    watched.supervisor.stop()
    watched.run(f"touch {tmp_path}/started; {STAYS}")
    assert list(tmp_path.iterdir()) == []
    assert watched.said == []
