"""How many bytes does an epoch read from storage, as the kernel counts them?

    python -m bench.bytes_read --data photos.brand --out bench/results/bytes_read.json

For each memory limit and order, a data server in this process reads past the page cache, and a `BrandLoader` draws
four epochs. `read_bytes` of /proc/self/io counts the bytes that the block device delivers. An epoch is counted from the
end of the epoch before, so bytes that the server reads ahead count for the epoch in which it reads them. Figures are
bytes read over the stored bytes of all samples.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

from brand import BrandDataset, BrandLoader, BrandSampler
from brand.orders import Slots, Stripes
from brand.testing.node import running_server

EPOCHS = 4
CASES: dict[str, tuple[float, Stripes | Slots]] = {
    "stripes, 1/10, all mixes": (0.1, Stripes(buffer=0.1)),
    "stripes, 1/4, all mixes": (0.25, Stripes(buffer=0.25)),
    "stripes, 1/10": (0.1, Stripes()),
    "stripes, 1/4": (0.25, Stripes()),
    "stripes, all": (1.0, Stripes()),
    "slots, 1/10": (0.1, Slots()),
    "slots, 1/4": (0.25, Slots()),
}


def read_bytes() -> int:
    """Return the bytes that the block device delivered for this process."""
    return int(re.findall(r"^read_bytes: (\d+)", Path("/proc/self/io").read_text(), re.MULTILINE)[0])


def run(folder: Path, name: str) -> dict[str, Any]:
    """Run one case, and return its bytes read by epoch over bytes delivered."""
    memory, order = CASES[name]
    with running_server(folder, memory=memory, page_cache=False) as server:
        data = BrandDataset(folder, server=server.address, order=order, decode=False)
        sampler = BrandSampler(data)
        loader = BrandLoader(data, 256, sampler=sampler)
        delivered = data._source.mean_bytes * len(data)
        shares: list[float] = []
        before = read_bytes()
        for epoch in range(EPOCHS):
            sampler.set_epoch(epoch)
            for _ in loader:
                pass
            after = read_bytes()
            shares.append((after - before) / delivered)
            before = after
        stats = data.stats()
    kept = stats["memory"]["cached"] / (stats["memory"]["limit"] / memory)
    return {"case": name, "epochs": shares, "kept": kept, "exact": stats["direct"], "order": str(sampler.order)}


def main() -> None:
    """Run all cases, print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="a converted data set on a block device")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    print(f"| case | kept | {' | '.join(f'epoch {n + 1}' for n in range(EPOCHS))} | 1 - kept | exact reads |")
    print(f"| --- | {'--- | ' * (EPOCHS + 3)}")
    rows = []
    for name in CASES:
        rows.append(row := run(options.data, name))
        shares = " | ".join(f"x{share:.3f}" for share in row["epochs"])
        print(f"| {name} | {row['kept']:.3f} | {shares} | {1 - row['kept']:.3f} | {row['exact']} |", flush=True)
    if options.out:
        options.out.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
