"""An object store that breaks on purpose: what does a program make of S3, GCS or a web server at their worst?

    with ObjectStore() as store:
        store.put("bucket/data.brand/brand.json", b"...")
        store.faults = Faults(
            Fault(Reset(after=1000), "GET", "bucket/*/chunks/*5.chunk", only={3}),  # the third GET of chunk 5
            Fault(Busy(), share=0.01),
            seed=7,
        )
        ...                      # a client reads from store.url
        assert "LIST" not in {request.operation for request in store.requests}

It is a real HTTP server in threads of this process, on loopback where no other address is given. Objects are files of a
folder, so that a data set of any size can be served from where it lies; `python -m tests.tools.objects FOLDER` does
so in a process of its own. It needs the standard library only. It takes only keys that are names of files, and promises
no durability.
"""

from tests.tools.objects.faults import (
    Bomb,
    Busy,
    Denied,
    Endless,
    Expired,
    Fault,
    Faults,
    Longer,
    Lost,
    Redirect,
    Reset,
    Short,
    Stall,
    WrongETag,
    WrongRange,
)
from tests.tools.objects.flavours import S3, Flavour, Gcs, Http
from tests.tools.objects.signature import Keys
from tests.tools.objects.store import ObjectStore, Request

__all__ = [
    "S3",
    "Bomb",
    "Busy",
    "Denied",
    "Endless",
    "Expired",
    "Fault",
    "Faults",
    "Flavour",
    "Gcs",
    "Http",
    "Keys",
    "Longer",
    "Lost",
    "ObjectStore",
    "Redirect",
    "Request",
    "Reset",
    "Short",
    "Stall",
    "WrongETag",
    "WrongRange",
]
