"""`brand serve DST`."""

from __future__ import annotations

import errno
import os
import signal
from pathlib import Path

import click

from brand.cli.output import size
from brand.errors import StorageError, UsageError
from brand.node.connection import own_address
from brand.node.server import NodeServer
from brand.storage.dataset import StoredDataSet


@click.command()
@click.argument("dst", type=click.Path(path_type=Path))
@click.option(
    "--memory", help="Memory for samples: 2GB, or a share of the data such as 0.25. Default: a quarter of what is free."
)
@click.option("--address", help="Where to listen, unix:@NAME. Default: a name made from the data set.")
def serve(dst: Path, memory: str | None, address: str | None) -> None:
    """Run the node server of the data set DST until Ctrl-C, for several processes of this user.

    They attach with BrandDataset(DST, server=ADDRESS). Without this verb a training starts its own server.
    """
    where = address or own_address(StoredDataSet(dst).id.encode())
    try:
        server = NodeServer(dst, where, memory=_share(memory))
    except OSError as error:
        if error.errno != errno.EADDRINUSE or isinstance(error, StorageError):
            raise
        raise UsageError(f"somebody listens at {where} already: attach to it, or give another --address") from None
    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, lambda *_: server.stop())
    click.echo(f"serving {dst} with {size(server.memory)} for samples, process {os.getpid()}", err=True)
    click.echo(f'attach with: BrandDataset("{dst}", server="{where}")', err=True)
    click.echo(where)
    server.run()


def _share(memory: str | None) -> str | float | None:
    """A number without a unit that is at most 1 is a share of the data."""
    try:
        share = float(memory or "")
    except ValueError:
        return memory
    return share if share <= 1 else memory
