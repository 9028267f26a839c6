"""The statistics of a server in the text format of Prometheus: a pure function of `NodeServer.facts`.

Names begin with `brand_` and end with their unit; counters end with `_total`. `docs/guides/monitor.md` lists them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from brand.node.wire.looping import BOUNDS

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_SHOWN: Final = tuple(number for number in range(len(BOUNDS)) if number % 10 in (0, 3, 7))
"""Buckets that Prometheus gets: those that end at 1, 2 and 5 of each decade."""

Sample = tuple[Mapping[str, Any], float | int | None]
"""Labels and a value; the value is None if there is none."""

_PLAIN: Final = {
    "uptime_s": ("uptime_seconds", "Seconds since the server started."),
    "data_bytes": ("data_set_bytes", "Size of the data set."),
    "clients": ("clients", "Connections of clients."),
    "waiting": ("waiting_fetches", "Fetches that wait now."),
    "reading": ("storage_reads_in_flight", "Large reads under way."),
    "fetched": ("fetched_samples_total", "Samples that clients have fetched, also those that wait to be trained."),
    "from_memory": ("fetched_from_memory_samples_total", "Samples fetched from memory."),
    "direct": ("direct_read_samples_total", "Samples fetched that clients read directly."),
    "reads": ("storage_reads_total", "Large reads of the storage."),
    "read_bytes": ("storage_read_bytes_total", "Bytes of large reads of the storage."),
    "failed_reads": ("storage_failed_reads_total", "Large reads that failed."),
    "timeouts": ("node_timeout_samples_total", "Samples that another node did not send in time."),
}
_CAUSES: Final = ("storage", "node", "decode", "server")


def prometheus(facts: Mapping[str, Any]) -> str:
    return "".join(_families(facts))


def _families(facts: Mapping[str, Any]) -> Iterator[str]:
    yield _family("info", "The data set that is served; always 1.", [({"data_set": facts["data_set"]}, 1)])
    for name, (metric, meaning) in _PLAIN.items():
        yield _family(metric, meaning, [({}, facts[name])])
    meaning = "Damaged samples that were replaced by other samples."
    yield _family("replaced_samples_total", meaning, [({}, len(facts["replaced"]))])
    waits = [({"cause": cause}, facts[f"{cause}_wait_s"]) for cause in _CAUSES]
    yield _family("fetch_wait_seconds_total", "Seconds that fetches waited in the server.", waits)
    yield from _memory(facts)
    yield from _traffic(facts)
    yield from _resources(facts["storage"], facts["processes"])
    yield from _progress(facts["jobs"])
    yield from _trainings(facts["training"])
    yield from _loops(facts["loops"])


def _memory(facts: Mapping[str, Any]) -> Iterator[str]:
    memory = facts["memory"]
    kinds = {"cached": memory["cached"], "leased": memory["leased"], "free": memory["free"]}
    kinds["epoch"] = max(0, memory["used"] - memory["cached"] - memory["leased"])
    samples = [({"kind": kind}, size) for kind, size in kinds.items()]
    yield _family("memory_bytes", "Memory for samples, by use.", samples)
    yield _family("memory_limit_bytes", "Memory for samples.", [({}, memory["limit"])])


def _traffic(facts: Mapping[str, Any]) -> Iterator[str]:
    """Yield the metrics of object store, cache folder, decode workers and other nodes, if there are any."""
    store, cache, decoding, cluster = (facts[name] for name in ("store", "cache", "decoding", "cluster"))
    if store is not None:
        yield _family("store_requests_total", "Requests to the object store.", [({}, store["requests"])])
        yield _family("store_bytes_total", "Bytes from the object store.", [({}, store["bytes"])])
    if cache is not None:
        for name in ("read_bytes", "written_bytes", "used"):
            metric = "cache_used_bytes" if name == "used" else f"cache_{name}_total"
            yield _family(metric, "Bytes of the cache folder.", [({}, cache[name])])
    if decoding is not None:
        for name, meaning in (
            ("decoded", "Samples that decode workers have decoded."),
            ("fetched_decoded", "Samples fetched that they had decoded."),
            ("fetched_encoded", "Samples fetched from memory that clients decode."),
        ):
            yield _family(f"{name}_samples_total", meaning, [({}, decoding[name])])
    if cluster is not None:
        for name in ("sent", "received"):
            samples = [({"node": node}, size) for node, size in cluster[f"{name}_bytes"].items()]
            yield _family(f"node_{name}_bytes_total", f"Bytes {name}, by the other node.", samples)
        meaning = "Other nodes that are reachable."
        yield _family("nodes_reachable", meaning, [({}, len(cluster["reachable"]))])


def _progress(jobs: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    runs = [({"run": job["job"]}, job) for job in jobs]
    for metric, meaning, name in (
        ("run_epoch", "The epoch of a run.", "epoch"),
        (
            "run_position_samples",
            "Samples of the epoch that all ranks together have fetched.",
            "position",
        ),
        ("run_epoch_samples", "Samples of an epoch.", "samples"),
    ):
        yield _family(metric, meaning, [(labels, job[name]) for labels, job in runs])


def _resources(storage: Mapping[str, Any], processes: Mapping[str, int]) -> Iterator[str]:
    """Yield the measured limit of the storage, and the memory of processes."""
    meaning = "Bandwidth of the storage as `brand profile` measured it, for reads of the mean size of the last seconds."
    yield _family("storage_limit_bytes_per_second", meaning, [({}, storage["limit_bytes_per_s"])])
    kinds = [({"kind": kind}, processes.get(kind)) for kind in ("server", "arena", "clients")]
    meaning = "Resident memory: of the server, of the memory for samples, and of all client processes."
    yield _family("process_memory_bytes", meaning, kinds)
    meaning = "Memory that the machine or the control group allows."
    yield _family("machine_memory_limit_bytes", meaning, [({}, processes.get("limit"))])
    meaning = "Memory that the machine or the control group has left."
    yield _family("machine_memory_available_bytes", meaning, [({}, processes.get("available"))])


def _trainings(trainings: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    runs = [({"run": job["job"]}, job) for job in trainings if job["reports"]]
    for metric, meaning, name in (
        ("run_taken_samples", "Samples of the epoch that the training loops have received.", "taken"),
        (
            "run_samples_per_second",
            "Samples per second of the loops of this node, over ten seconds.",
            "samples_per_s",
        ),
        ("run_left_seconds", "Seconds until the end of the epoch, at the pace of the last minute.", "left_s"),
    ):
        yield _family(metric, meaning, [(labels, job[name]) for labels, job in runs])


def _loops(loops: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    ranks = [({"run": loop["job"], "rank": loop["rank"]}, loop) for loop in loops]
    meaning = "Seconds of all steps of a training loop, waits and training."
    yield _family("loop_step_seconds_total", meaning, [(labels, loop["seconds"]) for labels, loop in ranks])
    meaning = "Samples that a training loop has received."
    yield _family("loop_samples_total", meaning, [(labels, loop["samples"]) for labels, loop in ranks])
    meaning = "Batches of its epoch that a training loop has received."
    yield _family("loop_step", meaning, [(labels, loop["step"]) for labels, loop in ranks])
    meaning = "Seconds that a training loop has waited so far for its current batch."
    now = [(labels | {"cause": loop["now"]["cause"]}, loop["now"]["wait_s"]) for labels, loop in ranks if loop["now"]]
    yield _family("loop_waiting_seconds", meaning, now)
    if ranks:
        meaning = "Seconds that a training loop waited for a batch; cause loop: hardly, the training sets the pace."
        yield _head("loop_wait_seconds", "histogram", meaning)
    for labels, loop in ranks:
        for cause, counts in loop["buckets"].items():
            seconds = loop["causes"].get(cause, {}).get("wait_s", 0.0)
            yield from _histogram("loop_wait_seconds", labels | {"cause": cause}, seconds, counts)


def _histogram(name: str, labels: Mapping[str, Any], seconds: float, counts: list[int]) -> Iterator[str]:
    for number in _SHOWN:
        yield _line(f"{name}_bucket", {**labels, "le": f"{BOUNDS[number]:g}"}, sum(counts[: number + 1]))
    yield _line(f"{name}_bucket", {**labels, "le": "+Inf"}, sum(counts))
    yield _line(f"{name}_sum", labels, seconds)
    yield _line(f"{name}_count", labels, sum(counts))


def _family(name: str, meaning: str, samples: Iterable[Sample]) -> str:
    """Return a counter or a gauge with its samples; empty if it has none."""
    lines = [_line(name, labels, value) for labels, value in samples if value is not None]
    return "".join([_head(name, "counter" if name.endswith("_total") else "gauge", meaning), *lines]) if lines else ""


def _head(name: str, kind: str, meaning: str) -> str:
    return f"# HELP brand_{name} {meaning}\n# TYPE brand_{name} {kind}\n"


def _line(name: str, labels: Mapping[str, Any], value: float | int) -> str:
    named = ",".join(f'{label}="{_escaped(str(text))}"' for label, text in labels.items())
    return f"brand_{name}{{{named}}} {value}\n" if named else f"brand_{name} {value}\n"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
