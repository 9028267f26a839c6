"""Which library accesses the store of a URL? obstore, huggingface_hub or fsspec, by the scheme of the URL."""

from __future__ import annotations

from brand.stores.store import Store, Traffic, note_use
from brand.stores.url import parse_url


def open_store(text: str, patience_s: float | None = None, traffic: Traffic | None = None) -> Store:
    """Return the store of a URL.

    `patience_s`: how long a request is repeated if the store does not answer; None: `PATIENCE_S`. `traffic` counts
    the requests; None: a new object does. Raises `UsageError`, also if the required library is not installed, or if
    this process must not access a store (`note_use`).
    """
    note_use()
    url, traffic = parse_url(text), Traffic() if traffic is None else traffic
    # Imported here: `import brand` and a training from a folder load none of the three libraries' modules.
    if url.scheme in ("s3", "gs", "az", "http", "https"):
        from brand.stores.cloud import open_cloud

        return open_cloud(url, traffic, patience_s)
    if url.scheme == "hf":
        from brand.stores.hub import open_hub

        return open_hub(url, traffic, patience_s)
    from brand.stores.filesystems import open_file_system

    return open_file_system(url, traffic)
