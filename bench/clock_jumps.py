"""Does a training notice that the clock of its machine is set, forward or back by a second, an hour or a day?

    python -m bench.clock_jumps [--rounds 3]

The processes of a training, all its servers and a store get a wall clock that jumps (`LD_PRELOAD` of
`jumping_clock.c`, which `cc` compiles; the monotonic clock goes on). Each round takes epochs in three ways while the
clock jumps every quarter of a second: from a server of its own with a cache folder, from three nodes joined by TLS of
which one is killed and started again, and from an S3 store that refuses and cuts requests. Right: each epoch has every
sample in its order, within `LIMIT_S`, and no number in the statistics is below zero.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

JUMPS_S: Final = (86400, -86400, 3600, -3600, 1, -1, -10 * 86400, 0)
EVERY_S, LIMIT_S, EPOCHS, SAMPLES = 0.25, 600.0, 3, 1200
WAYS: Final = ("server", "nodes", "store")
_SOURCE: Final = Path(__file__).with_name("jumping_clock.c")


def run(way: str, library: Path, work: Path, seed: int) -> tuple[bool, str, int]:
    """Train in one way while the clock jumps. Return whether it was right, the last lines, and the number of jumps."""
    control, rng, jumps = work / "offset", random.Random(f"{seed}/{way}"), 0
    control.write_bytes(bytes(8))
    environment = os.environ | {
        "LD_PRELOAD": str(library),
        "JUMPING_CLOCK": str(control),
        "XDG_CACHE_HOME": str(work / "cache"),
    }
    command = [sys.executable, "-m", "bench.clock_jumps", "--train", way, "--work", str(work)]
    child = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    timer = threading.Timer(LIMIT_S, child.kill)
    timer.start()
    ended = threading.Event()

    def jump() -> None:
        nonlocal jumps
        with control.open("r+b", buffering=0) as file:
            while not ended.wait(EVERY_S):
                os.pwrite(file.fileno(), struct.pack("<q", rng.choice(JUMPS_S)), 0)
                jumps += 1

    thread = threading.Thread(target=jump)
    thread.start()
    said, _ = child.communicate()
    ended.set()
    thread.join()
    timer.cancel()
    return child.returncode == 0, " | ".join(said.splitlines()[-4:]), jumps


def train(way: str, work: Path) -> None:
    """Take the epochs, in the process whose clock jumps."""
    before = time.time()
    found = {"server": with_server, "nodes": with_nodes, "store": with_store}[way](work)
    seen = {round(time.time() - before)}
    below: set[str] = set()
    count = 0
    for epoch, want, got, facts in found:
        seen.add(round((time.time() - before) / 3600))
        if want != got:
            sys.exit(f"epoch {epoch}: another order")
        below |= set(negative(facts))
        count += len(got)
    if below:
        sys.exit(f"below zero: {sorted(below)}")
    print(f"{count} samples right; offsets seen in hours: {sorted(seen)}")


Found = Iterator[tuple[int, list[int], list[int], Any]]


def with_server(work: Path) -> Found:
    """Train from a server of its own, whose cache folder is filled, then read."""
    from brand import BrandDataset, BrandLoader, BrandSampler
    from brand.node.setup.caching import Cache

    path = work / "set.brand"
    for _ in range(2):
        data = BrandDataset(path, memory=0.2, cache=Cache(str(work / "cached")), fields=("index",))
        yield from _epochs(data, path, BrandLoader(data, 32, sampler=(sampler := BrandSampler(data, seed=1))), sampler)
        data._source.port.client.close()


def with_store(work: Path) -> Found:
    """Train from a store that refuses one request in ten and cuts another one."""
    from brand import BrandDataset, BrandLoader, BrandSampler
    from tests.tools.objects import S3, Busy, Fault, Faults, Keys, ObjectStore, Reset

    faults = Faults(Fault(Busy(), share=0.1), Fault(Reset(after=100), key="*/chunks/*", share=0.1), seed=1)
    with ObjectStore(work / "root", S3(Keys("key", "secret")), faults=faults) as store:
        os.environ |= {
            "AWS_ENDPOINT_URL": store.url,
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
        }
        data = BrandDataset("s3://bucket/set.brand", memory=0.2, fields=("index",))
        sampler = BrandSampler(data, seed=1)
        yield from _epochs(data, work / "set.brand", BrandLoader(data, 32, sampler=sampler), sampler)
        data._source.port.client.close()


def with_nodes(work: Path) -> Found:
    """Draw with two ranks from two nodes; one of the nodes is killed in each epoch, and started again."""
    import trustme

    from brand.node.setup.server_spec import Tls
    from tests.made_orders import order_of
    from tests.several_nodes.support import Rank, all_reachable, check_epoch, draw_in_step, node_of, servers
    from tests.support import wait_until

    ca = trustme.CA()
    issued = ca.issue_cert("127.0.0.1")
    ca.cert_pem.write_to_path(work / "ca.pem")
    issued.private_key_pem.write_to_path(work / "key.pem")
    issued.cert_chain_pems[0].write_to_path(work / "cert.pem")
    tls, path = Tls(work / "cert.pem", work / "key.pem", work / "ca.pem"), work / "set.brand"
    with servers(path, 3, memory=0.5, tls=tls) as found:
        wait_until(lambda: all_reachable(found), "all nodes can be reached")
        clients = [node_of(path, server.address) for server in found[:2]]
        order = order_of(path)
        ranks = [Rank(client, order, rank, 2) for rank, client in enumerate(clients)]
        for epoch in range(EPOCHS):

            def disturb(batches: int) -> None:
                if batches % 38 == 10:
                    found[2].kill()
                elif batches % 38 == 25:
                    found[2].start()
                    found[2].tell([server.listens_at for server in found])

            draw_in_step(ranks, [epoch], disturb)
            check_epoch(ranks, epoch)
            plan = order.plan(epoch).sample_of.tolist()
            yield epoch, plan, plan, [server.facts() for server in found]
        for client in clients:
            client.close()


def _epochs(data: Any, path: Path, loader: Any, sampler: Any) -> Found:
    from tests.torch.support import indices_of, planned

    for epoch in range(EPOCHS):
        found: list[int] = []
        for batch in loader:
            found += indices_of([batch])
            time.sleep(0.02)
        yield epoch, planned(path, sampler.order, epoch), found, data.stats()


def negative(facts: Any, where: str = "") -> Iterator[str]:
    """Yield the names of numbers below zero."""
    if isinstance(facts, dict):
        for name, value in facts.items():
            yield from negative(value, f"{where}.{name}")
    elif isinstance(facts, list | tuple):
        for value in facts:
            yield from negative(value, where)
    elif isinstance(facts, int | float) and facts < 0:
        yield where


def make_set(work: Path) -> None:
    """Write the data set, and put a copy into the bucket of the store."""
    import brand

    samples = [{"number": k, "text": f"{k}:" + "x" * (k % 400)} for k in range(SAMPLES)]
    brand.pack(samples, work / "set.brand", {"number": "int", "text": "str"}, chunk_size=32, jobs=1)
    shutil.copytree(work / "set.brand", work / "root" / "bucket" / "set.brand")


def main() -> None:
    """Run rounds, or train."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--train", choices=WAYS, help=argparse.SUPPRESS)
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.train:
        train(given.train, given.work)
        return
    wrong = 0
    for number in range(given.rounds):
        for way in WAYS:
            with tempfile.TemporaryDirectory(prefix="brand-clock-") as folder:
                make_set(Path(folder))
                library, began = Path(folder) / "clock.so", time.monotonic()
                subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", library, _SOURCE, "-ldl"], check=True)
                right, said, jumps = run(way, library, Path(folder), number)
            wrong += not right
            took, word = time.monotonic() - began, "right" if right else "WRONG"
            print(f"{number} {way:7} {word} {took:5.1f} s, {jumps} jumps: {said}", flush=True)
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
