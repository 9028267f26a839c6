"""Python imports this file at its start if the folder is on its path: it takes parts of the system away.

`BRAND_ABSENT` names attributes of `os` and `socket`, separated by commas, which this and all child processes lack then.
Where processes cannot be forked, they are spawned, as on Windows.
"""

import os
import socket

for name in filter(None, os.environ.get("BRAND_ABSENT", "").split(",")):
    for module in (os, socket):
        if hasattr(module, name):
            delattr(module, name)
if not hasattr(os, "fork"):
    import multiprocessing

    multiprocessing.set_start_method("spawn")
