"""The Prometheus text: a strict reader takes it, and it says what the facts say."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from brand.node.serve.metrics import prometheus
from brand.node.wire.client_messages import pack
from brand.node.wire.looping import IterationExtent, LoopReport, StepTally
from brand.storage.dataset.dataset import StoredDataSet
from brand.testing.node import RunningServer, running_server
from tests.node.support import RawClient

_NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
_SAMPLE = re.compile(rf"({_NAME})(?:\{{(.*)\}})? (\S+)")
_LABEL = re.compile(r'([a-zA-Z_]\w*)="((?:[^"\\\n]|\\\\|\\n|\\")*)"(?:,|$)')
_SUFFIXES = {"histogram": ("_bucket", "_sum", "_count")}

Families = dict[str, dict[tuple[tuple[str, str], ...], float]]


def read(text: str) -> Families:
    """Samples by name and labels, as the text format 0.0.4 has them; anything else is an AssertionError.

    Each family has HELP and TYPE once, before its samples, which stand together. Names have the prefix, counters end
    in `_total`. Buckets of a histogram grow up to `+Inf`, which is the count.
    """
    assert text.endswith("\n")
    families: Families = {}
    kinds: dict[str, str] = {}
    family = help_of = ""
    for line in text.splitlines():
        if line.startswith("# HELP "):
            help_of = line.split(" ")[2]
            assert len(line.split(" ", 3)[3]) > 5
            continue
        if line.startswith("# TYPE "):
            _, _, family, kind = line.split(" ")
            assert family == help_of
            assert family not in kinds
            assert family.startswith("brand_")
            assert (kind == "counter") == family.endswith("_total")
            kinds[family] = kind
            continue
        found = _SAMPLE.fullmatch(line)
        assert found is not None, line
        name, inner, value = found.groups()
        assert name in ([family + end for end in _SUFFIXES.get(kinds[family], ("",))])
        labels, at = [], 0
        while inner and at < len(inner):
            label = _LABEL.match(inner, at)
            assert label is not None, line
            labels.append((label[1], label[2]))
            at = label.end()
        samples = families.setdefault(name, {})
        assert tuple(labels) not in samples
        samples[tuple(labels)] = float(value)
    _check_histograms(families, [name for name, kind in kinds.items() if kind == "histogram"])
    return families


def _check_histograms(families: Families, names: list[str]) -> None:
    for name in names:
        buckets: dict[tuple[tuple[str, str], ...], list[tuple[float, float]]] = {}
        for labels, value in families[f"{name}_bucket"].items():
            assert labels[-1][0] == "le"
            buckets.setdefault(labels[:-1], []).append((float(labels[-1][1]), value))
        for labels, found in buckets.items():
            assert found == sorted(found)
            assert [value for _, value in found] == sorted(value for _, value in found)
            assert found[-1] == (float("inf"), families[f"{name}_count"][labels])
            assert labels in families[f"{name}_sum"]


@pytest.fixture
def told(texts: Path) -> Any:
    """The facts of a server to which a rank has reported a loop, with its cells."""
    with running_server(texts) as server:
        report_to(server, 'a "job"\n\\ of 1', [("storage", 0.5), ("storage", 0.003), ("loop", 0.0001)])
        yield server.node.facts(10)


def report_to(server: RunningServer, run: str, waits: list[tuple[str, float]], rank: int = 0) -> None:
    """Tell a server of steps of a rank of two."""
    tally = StepTally()
    for cause, wait_s in waits:
        tally.count(cause, wait_s, wait_s + 0.1, samples=8)
    extent = IterationExtent(100, 1100, 500)
    with RawClient(server.address) as client:
        client.hello(StoredDataSet(server.path).id)
        client.send(pack(LoopReport(run, rank, 2, 3, 7, 56, extent, tally)))
        client.stats()


def test_the_text_is_what_the_facts_say(told: dict[str, Any]) -> None:
    """Counters, gauges and the histogram, with a hostile name of a run."""
    found = read(prometheus(told))
    run = (("run", 'a \\"job\\"\\n\\\\ of 1'), ("rank", "0"))
    assert found["brand_loop_wait_seconds_sum"][(*run, ("cause", "storage"))] == pytest.approx(0.503)
    buckets = found["brand_loop_wait_seconds_bucket"].items()
    counts = {labels[-1][1]: value for labels, value in buckets if labels[2][1] == "storage"}
    assert (counts["0.002"], counts["0.005"], counts["0.2"], counts["0.5"], counts["+Inf"]) == (0, 1, 1, 2, 2)
    assert found["brand_loop_step_seconds_total"][run] == pytest.approx(0.8031)
    assert found["brand_loop_samples_total"][run] == 24
    assert found["brand_run_taken_samples"][run[:1]] == 100 + round(1000 * 56 / 500)
    assert found["brand_run_samples_per_second"][run[:1]] == pytest.approx(24 / 0.8031)
    assert found["brand_memory_limit_bytes"][()] == told["memory"]["limit"]
    assert sum(found["brand_memory_bytes"].values()) <= told["memory"]["limit"]
    assert found["brand_fetched_samples_total"][()] == told["fetched"]
    assert "brand_node_sent_bytes_total" not in found


def test_what_is_only_there_sometimes(told: dict[str, Any]) -> None:
    """A store, a cache folder, preparers, other nodes, a run under way, a loop that waits now."""
    loop = {**told["loops"][0], "now": {"step": 8, "wait_s": 1.5, "cause": "node"}}
    job = {"job": "run", "epoch": 3, "position": 100, "samples": 1000}
    more = {
        "store": {"requests": 3, "bytes": 4},
        "cache": {"read_bytes": 5, "written_bytes": 6, "used": 7},
        "decoding": {"decoded": 8, "fetched_decoded": 9, "fetched_encoded": 10},
        "cluster": {"reachable": [1], "sent_bytes": {"1": 11}, "received_bytes": {"1": 12}},
        "loops": [loop],
        "jobs": [job],
    }
    found = read(prometheus({**told, **more}))
    assert found["brand_node_received_bytes_total"] == {(("node", "1"),): 12}
    assert found["brand_store_bytes_total"][()] == 4
    assert found["brand_cache_used_bytes"][()] == 7
    assert found["brand_fetched_encoded_samples_total"][()] == 10
    assert found["brand_run_position_samples"] == {(("run", "run"),): 100}
    assert next(iter(found["brand_loop_waiting_seconds"].values())) == 1.5


@pytest.mark.parametrize(
    "wrong",
    [
        "x 1\n",
        "# HELP brand_x some help\n# TYPE brand_x gauge\nbrand_x{a=b} 1\n",
        "# HELP brand_x some help\n# TYPE brand_x counter\nbrand_x 1\n",
        "# HELP brand_x some help\n# TYPE brand_x gauge\nbrand_x 1\nbrand_x 2\n",
        '# HELP brand_x the help\n# TYPE brand_x histogram\nbrand_x_bucket{le="1"} 1\nbrand_x_sum 1\nbrand_x_count 2\n',
    ],
)
def test_the_reader_is_strict(wrong: str) -> None:
    """It refuses what it should."""
    with pytest.raises((AssertionError, KeyError)):
        read(wrong)
