"""`brand serve` and `brand top`: what they print, who may attach, how they end, and what they say of wrong use."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from brand import BrandDataset, BrandLoader
from brand.cli import top, top_view
from brand.cli.serve import as_memory
from brand.node.client.connector import look_at
from brand.node.wire.connection import listen, own_address, own_addresses, second_address
from brand.testing.node import RunningServer, random_address, running_server
from tests.cli.test_terminal import on_terminal, plain
from tests.support import LIMIT_S, brand, running_brand, wait_until
from tests.tools.cluster import running_cluster

KEYS = {
    *("data_set", "address", "process", "uptime_s", "data_bytes", "clients", "replaced", "fetched", "from_memory"),
    *(
        "direct_hits",
        "direct",
        "waited",
        "wait_s",
        "reads",
        "read_bytes",
        "read_samples",
        "buffered",
        "failed_reads",
        "hit_ratio",
    ),
    *(
        "hit_ratio",
        "read_utilisation",
        "read_amplification",
        "memory",
        "reading",
        "waiting",
        "epochs",
        "jobs",
        "cache",
        "cluster",
        "sent",
    ),
    *("sent_bytes", "store", "decoding", "pending", "loops", "recent_warnings", "why"),
    *("training", "storage", "processes", "problems"),
    *("storage_wait_s", "node_wait_s", "decode_wait_s", "server_wait_s"),
    *("received", "received_bytes", "requests", "on_demand", "timeouts", "remote_reads"),
}
JOB = {
    **{"job": "lr-0.1", "epoch": 3, "position": 500, "samples": 1000, "fetched": 500, "rate": 1234.5, "shared": 0.25},
    **{"sets_the_pace": False, "pace": None, "behind": 0, "joins": []},
}
TRAINING = {
    **{"job": "lr-0.1", "state": "training", "reports": True, "heard_s": 0.5, "busy_s": 0.0, "epoch": 3, "step": 10},
    **{"taken": 250, "fetched": 500, "samples": 1000, "share": 0.25, "samples_per_s": 1234.5, "batches_per_s": 12.34},
    **{"left_s": 75.0, "wait_share": 0.031, "ranks": 1, "ranks_here": 1, "slow_rank": None},
}
USED = {
    **{"server": 30_000_000, "arena": 68_000_000, "clients": 1_000_000_000, "client_processes": 4},
    **{"limit": 64_000_000_000, "available": 60_000_000_000},
}


@contextmanager
def serving(*args: object) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """`brand serve ...` in a process of its own: its address, and the process."""
    with running_brand("serve", *args) as process:
        assert process.stdout is not None
        yield process.stdout.readline().decode().strip(), process


def told(process: subprocess.Popen[bytes]) -> str:
    """What it wrote to standard error, once it has ended."""
    assert process.stderr is not None
    return process.stderr.read().decode()


def drawn(address: str, path: Path) -> list[int]:
    """Indices of an epoch that is drawn from a server, sorted."""
    data = BrandDataset(path, fields=("index",), server=address)
    return sorted(index for (indices,) in BrandLoader(data, 8) for index in indices.tolist())


@pytest.fixture
def server(own_photos_set: Path) -> Iterator[RunningServer]:
    """A server of the photos in this process, which has served one epoch to a client that is still there."""
    with running_server(own_photos_set, memory=1.0) as running:
        loader = BrandLoader(BrandDataset(own_photos_set, fields=("index",), server=running.address), 8)
        assert sum(len(indices) for (indices,) in loader) == 31
        yield running


# -- serve -------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_it_serves_until_it_is_stopped(own_photos_set: Path, how: signal.Signals) -> None:
    """The address alone goes to stdout, the rest to stderr; Ctrl-C and SIGTERM end it with 0 and free the address."""
    address = random_address()
    with serving(own_photos_set, "--address", address) as (where, process):
        assert where == address
        assert drawn(where, own_photos_set) == list(range(31))
        assert look_at(where)["process"] == process.pid
        process.send_signal(how)
        assert process.wait(LIMIT_S) == 0
        assert process.stdout is not None
        assert process.stdout.read() == b""
        lines = told(process).splitlines()
    assert re.fullmatch(rf"serving {own_photos_set} with [\d.]+ kB for samples, process {process.pid}", lines[0])
    assert lines[1:] == [f'attach with: BrandDataset("{own_photos_set}", server="{address}")']
    with serving(own_photos_set, "--address", address) as (where, _):
        assert look_at(where)["fetched"] == 0


@pytest.mark.slow
def test_a_signal_that_wakes_no_main_thread_ends_it(own_photos_set: Path) -> None:
    """As one that comes just before the loop sleeps: here the kernel gives it to another thread."""
    with serving(own_photos_set, "--address", random_address()) as (_, process):
        threads = sorted(int(path.name) for path in Path(f"/proc/{process.pid}/task").iterdir())
        os.kill(next(thread for thread in threads if thread != process.pid), signal.SIGTERM)
        assert process.wait(LIMIT_S) == 0


@pytest.mark.slow
def test_the_address_follows_from_the_data_set(own_photos_set: Path, tmp_path: Path) -> None:
    """A copy of the set has the same; a second server there is refused and says what to do."""
    shutil.copytree(own_photos_set, tmp_path / "copy.brand")
    with serving(tmp_path / "copy.brand") as (where, _):
        assert where in own_addresses()
        again = brand("serve", own_photos_set)
        assert again.code == 2
        assert again.err == f"brand: a program listens at {where} already: attach to it, or give another --address\n"


@pytest.mark.slow
def test_its_memory_is_the_limit(own_photos_set: Path) -> None:
    """A share of the data, of which no more is ever taken, whatever the attached data set asks for."""
    with serving(own_photos_set, "--memory", "0.5", "--address", random_address()) as (where, _):
        limit = look_at(where)["memory"]["limit"]
        data = BrandDataset(own_photos_set, fields=("index",), server=where, memory=1.0)
        for _ in BrandLoader(data, 4):
            assert data.stats()["memory"]["used"] <= limit
        assert 0.4 < limit / look_at(where)["data_bytes"] < 0.6


@pytest.mark.parametrize(
    ("memory", "meant"),
    [(None, None), ("0.25", 0.25), ("1", "1"), ("1.0", 1.0), ("2GB", "2GB"), ("1.5 GiB", "1.5 GiB"), ("4096", "4096")],
)
def test_a_number_with_a_point_is_a_share(memory: str | None, meant: object) -> None:
    """Other numbers are bytes, and texts sizes."""
    assert as_memory(memory) == meant


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        (("nowhere.brand",), 1, "nowhere.brand: there is no such folder"),
        (("SET", "--memory", "lots"), 2, "'lots' is not a size; write it like 2GB, 500MB or 1.5GiB"),
        (("SET", "--memory", "8G"), 2, "brand: --memory: '8G' is not a size; write 8GB"),
        (("SET", "--peer-memory", "lots"), 2, "brand: --peer-memory: 'lots' is not a size"),
        (("SET", "--memory", "0"), 2, "--memory 0 has no unit: give a size such as '8GB', or a share such as 0.25"),
        (("SET", "--memory", "1"), 2, "--memory 1 has no unit: give a size such as '8GB', or a share such as 0.25"),
        (("SET", "--memory", "1.5"), 2, "above 0 and at most 1.0"),
        (("SET", "--memory", "100B"), 2, "memory of 100 bytes is too small"),
        (("SET", "--peer-memory", "1"), 2, "--peer-memory 1 has no unit"),
        (("SET", "--decoded-memory", "2"), 2, "--decoded-memory 2 has no unit: give a size such as '8GB'"),
        (("SET", "--cache", "here:100"), 2, "--cache: size='100' of a cache has no unit: give a size such as"),
        (("SET", "--address", "here"), 2, "an address looks like 'unix:@name'"),
        (("SET", "--address", "unix:/tmp/socket"), 2, "an address looks like 'unix:@name'"),
        ((), 2, "Missing argument 'DST'"),
    ],
)
def test_what_cannot_be_served(own_photos_set: Path, args: tuple[str, ...], code: int, says: str) -> None:
    """One line, and the exit code of wrong use or of what was found wrong."""
    answer = brand("serve", *(own_photos_set if arg == "SET" else arg for arg in args))
    assert (answer.code, answer.out) == (code, "")
    assert says in answer.err
    assert "Traceback" not in answer.err


@pytest.mark.slow
def test_it_outlives_those_that_attach(own_photos_set: Path) -> None:
    """A data set that attaches does not own it."""
    with serving(own_photos_set, "--address", random_address()) as (where, process):
        for _ in range(2):
            assert drawn(where, own_photos_set) == list(range(31))
        assert process.poll() is None
        assert look_at(where)["fetched"] == 62


@pytest.mark.slow
def test_another_data_set_is_refused(own_photos_set: Path, clips_set: Path) -> None:
    """The message names both."""
    with serving(own_photos_set, "--address", random_address()) as (where, process):
        with pytest.raises(Exception, match="serves data set"):
            drawn(where, clips_set)
        assert drawn(where, own_photos_set) == list(range(31))
        assert process.poll() is None


# -- top ---------------------------------------------------------------------------------------------------------------


def test_one_look(server: RunningServer) -> None:
    """Everything that is known, in lines, without colours where there is no terminal."""
    answer = brand("top", server.address, "--once")
    assert (answer.code, answer.err) == (0, "")
    lines = {line.split("  ")[0]: " ".join(line.split()) for line in answer.out.splitlines()}
    assert lines["data set"].startswith(f"data set {server.path}")
    assert f"{server.address}, process" in answer.out
    assert re.search(r"fetched [\d,]+/s, 31 in all, 100.0 % from memory, 0 direct reads, 0", lines["fetched"])
    assert lines["epoch 0"].startswith(f"epoch 0 {40 * '█'} 100.0 %, 31 of 31")
    assert lines["problems"] == "problems none"
    assert "0 in flight, read utilisation 100.0 %, amplification x" in " ".join(answer.out.split())
    assert re.search(r"memory [\d.]+ kB █+", lines["memory"])
    assert [
        kind for kind in ("cached", "samples of this epoch", "being copied", "free") if kind not in answer.out
    ] == []
    assert "\x1b" not in answer.out


def test_no_terminal_means_one_look(server: RunningServer) -> None:
    """So that a pipe does not wait for ever."""
    now, once = brand("top", server.address), brand("top", server.address, "--once")
    assert now.code == 0
    assert len(now.out.splitlines()) == len(once.out.splitlines())


def test_all_counters_as_json(server: RunningServer) -> None:
    """One document with what `ds.stats()` returns; a page of the documentation explains each key."""
    answer = brand("top", server.address, "--json")
    assert (answer.code, answer.err) == (0, "")
    facts = answer.json
    assert set(facts) == set(server.facts()) == KEYS
    assert (facts["fetched"], facts["from_memory"], facts["direct"]) == (31, 31, 0)
    assert facts["address"] == server.address
    page = (Path(__file__).parents[2] / "docs" / "reference" / "statistics.md").read_text(encoding="utf-8")
    assert [key for key in KEYS if f"`{key}`" not in page] == []


def test_a_look_disturbs_nothing(server: RunningServer) -> None:
    """Who only looks is no owner and no reader."""
    before = server.facts()
    for _ in range(3):
        assert brand("top", server.address, "--once").code == 0
    after = server.facts()
    for loop in (*before["loops"], *after["loops"], *before["training"], *after["training"]):
        del loop["heard_s"]
    assert {key for key in KEYS if before[key] != after[key]} <= {"uptime_s", "clients", "storage", "processes"}


def test_before_the_first_draw(own_photos_set: Path) -> None:
    """Ratios of nothing are dashes, and null as JSON."""
    with running_server(own_photos_set, memory=1.0) as running:
        shown = brand("top", running.address, "--once")
        assert "- from memory" in shown.out
        assert "no BrandLoader has reported yet" in shown.out
        assert "read utilisation -, amplification -" in " ".join(shown.out.split())
        assert brand("top", running.address, "--json").json["hit_ratio"] is None


def test_without_an_address_the_only_server_is_shown(server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the system lists those of this user."""
    monkeypatch.setattr(top, "own_addresses", lambda: [server.address])
    assert f"{server.address}, process" in brand("top").out


def test_several_servers_are_listed(own_photos_set: Path, clips_set: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With their data sets, so that one can be named."""
    with running_server(own_photos_set) as one, running_server(clips_set) as two:
        monkeypatch.setattr(top, "own_addresses", lambda: [one.address, two.address])
        answer = brand("top")
    assert answer.code == 2
    assert answer.err.splitlines()[0] == "brand: several servers run here; name one of"
    assert answer.err.splitlines()[1:] == [f"  {one.address}  {own_photos_set}", f"  {two.address}  {clips_set}"]


def test_a_server_with_an_address_of_its_own_is_listed(server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever it is called: it listens at a second name, which says whose it is and goes with it."""
    second = second_address(server.address)
    assert second in own_addresses()
    monkeypatch.setattr(top, "own_addresses", lambda: [second, own_address(b"nobody listens here")])
    assert f"{server.address}, process" in brand("top").out
    server.node.stop()
    server.thread.join(LIMIT_S)
    assert second not in own_addresses()


def test_a_second_name_that_is_taken_is_done_without(own_photos_set: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever has it cannot keep a server from serving."""
    address = random_address()
    with listen(second_address(address) or ""), running_server(own_photos_set, address=address) as running:
        assert running.facts()["address"] == address


def test_no_server_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """It says when there is one."""
    monkeypatch.setattr(top, "own_addresses", list)
    answer = brand("top")
    assert answer.code == 2
    assert "one starts with the first fetch, or with `brand serve`" in answer.err


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        (("unix:@brand-nobody-listens-here",), 1, "no data server at unix:@brand-nobody-listens-here"),
        (("elsewhere",), 2, "an address looks like 'unix:@name'"),
        (("unix:@x", "--interval", "0"), 2, "0.1<=x<=3600"),
    ],
)
def test_what_cannot_be_looked_at(args: tuple[str, ...], code: int, says: str) -> None:
    """One line, for people and as JSON."""
    answer = brand("top", *args)
    assert answer.code == code
    assert says in answer.err
    assert "Traceback" not in answer.err
    document = brand("top", *args, "--json")
    assert document.code == code
    assert says in document.json["error"]["message"]


@pytest.mark.slow
def test_a_terminal_shows_it_live_until_the_server_ends(own_photos_set: Path) -> None:
    """The view is drawn again and again; then it says why it stops, with exit code 0."""
    with ThreadPoolExecutor(1) as pool:
        with running_server(own_photos_set, memory=1.0) as running:
            watched = pool.submit(on_terminal, "top", running.address, "--interval", "0.1")
            wait_until(lambda: watched.done() or running.facts()["clients"] > 1, "brand top looks")
            for _ in range(3):
                assert drawn(running.address, own_photos_set) == list(range(31))
            wait_until(lambda: watched.done() or running.facts()["clients"] > 1, "brand top looks again")
        code, seen = watched.result(LIMIT_S)
    assert code == 0
    assert plain(seen).count("from memory") > 1
    assert "the server has ended" in plain(seen)


def facts_of(**more: Any) -> dict[str, Any]:
    """Counters of a server that has run for ten seconds."""
    memory = {"limit": 1000, "used": 700, "cached": 300, "leased": 100, "free": 300}
    return {
        **dict.fromkeys(KEYS, 0),
        "why": {"cause": "storage", "text": "step 3 waited 1.0 s for storage", "hint": ""},
        **{"data_set": "/a[b]/set.brand", "address": "unix:@x", "uptime_s": 10.0, "fetched": 5000, "reads": 100},
        **{"replaced": [], "hit_ratio": 0.5, "read_utilisation": 1.0, "read_amplification": 1.25, "memory": memory},
        **{"jobs": [JOB], "wait_s": 5.0},
        **{"cache": None, "store": None, "cluster": None, "decoding": None},
        **{"training": [TRAINING], "storage": {"text": "no reads in the last 10 s"}, "processes": USED},
        **{"problems": [], "recent_warnings": []},
        **more,
    }


def view(before: dict[str, Any] | None, **more: Any) -> str:
    """What is drawn, without styles and with single blanks."""
    from rich.console import Console

    console = Console(width=200, highlight=False)
    with console.capture() as capture:
        console.print(top_view.view(facts_of(**more), before, 1.0))
    return re.sub(" +", " ", capture.get())


def test_rates_are_those_since_the_last_look() -> None:
    """And since the server started, in the first one."""
    assert "fetched 500/s, 5,000 in all" in view(None)
    later = view(facts_of(), uptime_s=12.0, fetched=9000)
    assert "fetched 2,000/s, 9,000 in all" in later


def test_the_view_shows_progress_and_memory() -> None:
    """What the loop has taken, with what was read ahead as a lighter bar; how fast it is, and how long it takes."""
    shown = view(None)
    assert "epoch 3 " + 10 * "█" + 10 * "▒" + 20 * "░" + " 25.0 %, 250 of 1,000 samples, 250 more read ahead" in shown
    assert "1 min 15 s left" in shown
    assert "loop training, 1,234 samples/s, 12.3 batches/s over 10 s, waits for 3 % of its time" in shown
    assert "ranks" not in shown
    assert "storage no reads in the last 10 s" in shown
    assert "samples of this epoch 300 B" in shown
    assert "amplification x1.25" in shown
    assert "why step 3 waited 1.0 s for storage" in shown


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"state": "waiting", "samples_per_s": 0.0}, "loop waiting, 0 samples/s"),
        ({"state": "busy", "busy_s": 95.0}, "loop in one step for 1 min 35 s, 1,234 samples/s"),
        (
            {"state": "paused", "samples_per_s": None, "heard_s": 90.0},
            "loop paused, the last report was 1 min 30 s ago",
        ),
        ({"ranks": 8, "ranks_here": 4}, "ranks 4 of 8 here, none is slow"),
        ({"ranks": 2, "ranks_here": 2, "slow_rank": {"rank": 1, "text": "rank 1 is 9 batches behind"}}, "rank 1 is 9"),
        ({"reports": False, "taken": None, "share": None}, "50.0 %, 500 of 1,000 samples, fetched"),
    ],
)
def test_states_of_a_training(change: dict[str, Any], says: str) -> None:
    """Each with the number that matters."""
    assert says in view(None, training=[TRAINING | change])


def test_problems_are_shown_with_the_last_warnings() -> None:
    """Of the log."""
    warnings = [{"ago_s": 5.0 * number, "text": f"warning {number}"} for number in range(9)]
    shown = view(None, problems=["3 large reads of the storage failed", "node 1"], recent_warnings=warnings)
    assert "problems 3 large reads of the storage failed; node 1" in shown
    assert "warnings 0.0 s ago: warning 0" in shown
    assert "warning 3" not in shown


def test_the_memory_of_processes_is_shown() -> None:
    """With what is left."""
    shown = view(None)
    assert "processes server 30.0 MB, 4 client processes 1.0 GB, memory for samples 68.0 MB" in shown
    assert "machine 60.0 GB of 64.0 GB of memory left" in shown


def test_each_of_several_jobs_has_a_line() -> None:
    """With its rate, what it shared, and its place beside the others."""
    others = [JOB | {"sets_the_pace": True}, JOB | {"job": "b[x]", "joins": [[0, 0, 9, 1024]], "behind": 40}]
    shown = view(None, jobs=others, training=[TRAINING, TRAINING | {"job": "b[x]", "epoch": 7}])
    assert "job lr-0.1, 25.0 % shared, sets the pace" in shown
    assert "job b[x], 25.0 % shared, 40 samples behind" in shown
    assert "epoch 7 " in shown


def test_names_with_brackets_are_shown_as_they_are() -> None:
    """Rich takes them for styles otherwise."""
    assert "/a[b]/set.brand" in view(None)


def test_what_the_store_was_asked_for_is_shown() -> None:
    """Per second since the last look, and in all; nothing where the data set is in a folder."""
    assert "store" not in view(None)
    now = {"store": {"requests": 1500, "bytes": 6_000_000_000}}
    assert "store 150 requests/s, 600.0 MB/s, 1,500 requests and 6.0 GB in all" in view(None, **now)
    before = facts_of() | {"store": {"requests": 1300, "bytes": 5_000_000_000}}
    assert "store 100 requests/s, 500.0 MB/s, 1,500 requests" in view(before, uptime_s=12.0, **now)


def test_what_was_prepared_is_shown() -> None:
    """Per second since the last look; nothing where the server does not prepare."""
    assert "decoded" not in view(None)
    counts = {
        "limit": 1 << 30,
        "used": 500_000_000,
        "specs": 1,
        "decoded": 900,
        "fetched_decoded": 1500,
        "fetched_encoded": 7,
        "ended": 0,
    }
    now = {"decoding": counts | {"workers": 2}}
    shown = "decoded 90/s, 150/s fetched, 7 fetched encoded in all, 500.0 MB of 1.1 GB, 2 decode workers"
    assert shown in view(None, **now)
    before = facts_of() | {"decoding": counts | {"decoded": 700, "fetched_decoded": 1100}}
    assert "decoded 100/s, 200/s fetched" in view(before, uptime_s=12.0, **now)


def test_one_of_several_nodes_shows_the_others() -> None:
    """Which can be asked, and what comes and goes, per second since the last look."""
    assert "cluster" not in view(None)
    here = {"cluster": {"node": 1, "nodes": 3, "reachable": [0, 2]}, "sent": 100, "sent_bytes": 20_000_000}
    shown = view(None, **here, received=5000, received_bytes=10**6, requests=1200, timeouts=3, remote_reads=2)
    assert "cluster node 1 of 3, all others reachable" in shown
    assert "sent 10/s, 2.0 MB/s, 100 in all" in shown
    assert "received 500/s, 100.0 kB/s, 5,000 in all" in shown
    assert "asked for 1,200 as planned, 0 on demand, 3 timeouts, 2 remote reads" in shown
    later = view(facts_of(**here), uptime_s=12.0, **here | {"sent": 300})
    assert "sent 100/s, 0 B/s, 300 in all" in later
    alone = view(None, cluster={"node": 1, "nodes": 4, "reachable": [2]})
    assert "node 1 of 4, not reachable: 0, 3" in alone


@pytest.mark.slow
def test_a_running_node_shows_its_cluster(own_photos_set: Path) -> None:
    """Also as JSON."""
    with running_cluster(own_photos_set, nodes=2) as cluster:
        where = cluster.addresses[0]
        wait_until(lambda: brand("top", where, "--json").json["cluster"]["reachable"] == [1], "they meet")
        assert "node 0 of 2, all others reachable" in brand("top", where).out
        cluster.kill(1)
        wait_until(lambda: "node 0 of 2, not reachable: 1" in brand("top", where).out, "it is missed")
