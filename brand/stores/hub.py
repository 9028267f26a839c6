"""How are files of the Hugging Face Hub read? Their URL is `hf://datasets/owner/name[@revision]/folder`.

huggingface_hub finds the token and resolves the revision to a commit. After that, reads are plain ranges of this
commit, so a data set that gets a new commit meanwhile does not change here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from brand.errors import UsageError
from brand.stores.cloud import CloudStore, open_cloud
from brand.stores.reasons import failed, missing
from brand.stores.store import Traffic
from brand.stores.url import Url, parse_url

_BRACES: Final = re.compile(r"\{\d+\.\.\d+\}")
_KINDS: Final = {"datasets": "dataset", "spaces": "space", "models": "model"}
_HOSTS: Final = ("hf.co", "huggingface.co")
"""The Hub's own hosts, to which it redirects reads."""


def open_hub(url: Url, traffic: Traffic, patience_s: float | None = None) -> CloudStore:
    """Return the store of a URL of the Hub; it is read-only. Raises `UsageError`."""
    try:
        from huggingface_hub import HfApi, get_token
        from huggingface_hub.constants import ENDPOINT
    except ImportError:
        raise missing(url, "huggingface_hub", "huggingface_hub") from None
    kind, repository, revision, folder = _parts(url)
    with _asking(url):
        commit = HfApi().repo_info(repository, repo_type=kind, revision=revision, timeout=30).sha
        token = get_token()
    prefix = "" if kind == "model" else f"{url.host}/"
    headers = {"authorization": f"Bearer {token}"} if token else {}
    base = parse_url("/".join(part for part in (f"{ENDPOINT}/{prefix}{repository}/resolve/{commit}", folder) if part))
    return open_cloud(base, traffic, patience_s, headers, _HOSTS)


def download(url: Url, names: str) -> Path:
    """Download the files of a data set of the Hub that match `names`, such as `*.parquet`, into the Hub's cache.

    Cached files are not downloaded again. Return the folder that the URL names. Raises `UsageError`.
    """
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise missing(url, "huggingface_hub", "huggingface_hub") from None
    kind, repository, revision, folder = _parts(url)
    patterns = pattern_of(folder, names)
    with _asking(url):
        return Path(snapshot_download(repository, repo_type=kind, revision=revision, allow_patterns=patterns), folder)


@contextmanager
def _asking(url: Url) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # noqa: BLE001 - the library raises those of several others
        why = failed(error, "").strerror
        raise UsageError(f"{url}: it is not on the Hub, or the Hub does not answer: {why}") from None


def pattern_of(folder: str, names: str) -> str:
    """Return the pattern of the files to download: `names` below a folder, or `folder` if it names files itself."""
    if folder.endswith(names.removeprefix("*")) or any(character in folder for character in "*?[{"):
        return _BRACES.sub("*", folder)  # the Hub's library knows no braces
    return f"{folder}/*{names}" if folder else names


def _parts(url: Url) -> tuple[str, str, str | None, str]:
    """Return kind and name of a repository, the revision, and the folder in it. Raises `UsageError`."""
    kind = _KINDS.get(url.host)
    owner, _, rest = url.path.partition("/")
    name, _, folder = rest.partition("/")
    name, _, revision = name.partition("@")
    if kind is None or not owner or not name:
        raise UsageError(f"{url}: write hf://datasets/OWNER/NAME/FOLDER, or hf://datasets/OWNER/NAME@REVISION/FOLDER")
    return kind, f"{owner}/{name}", revision or None, folder
