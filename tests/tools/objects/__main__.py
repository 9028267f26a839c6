"""The store in a process of its own: `python -m tests.tools.objects FOLDER`, for benchmarks and for a look by hand.

It prints the store's URL, serves until its standard input ends, and then prints each request that came, as a line of
JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Final

from tests.tools.objects.flavours import S3, Flavour, Gcs, Http
from tests.tools.objects.store import ObjectStore

_FLAVOURS: Final[dict[str, type[S3 | Gcs | Http]]] = {"s3": S3, "gcs": Gcs, "http": Http}


def main() -> None:
    """Serve a folder."""
    parser = argparse.ArgumentParser(prog="python -m tests.tools.objects", description=main.__doc__)
    parser.add_argument("folder", help="folder of buckets; the objects in them are files")
    parser.add_argument("--flavour", choices=_FLAVOURS, default="s3", help="how the store speaks (default: s3)")
    parser.add_argument("--latency", type=float, default=0.0, metavar="S", help="seconds before each answer")
    parser.add_argument("--bandwidth", type=float, metavar="B", help="bytes per second of all connections together")
    parser.add_argument("--address", default="127.0.0.1", help="where it listens (default: %(default)s)")
    args = parser.parse_args()
    flavour: Flavour = _FLAVOURS[args.flavour]()
    with ObjectStore(
        args.folder, flavour, latency_s=args.latency, bytes_per_s=args.bandwidth, address=args.address
    ) as store:
        sys.stdout.write(f"{store.url}\n")
        sys.stdout.flush()
        sys.stdin.read()
        for request in store.requests:
            told = {
                name: getattr(request, name) for name in ("operation", "key", "range", "status", "sent", "received")
            }
            sys.stdout.write(json.dumps(told) + "\n")


if __name__ == "__main__":
    main()
