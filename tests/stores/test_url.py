"""What a URL names, and what may not stand in one."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brand import pack
from brand.errors import StorageError, UsageError
from brand.storage.dataset.dataset import StoredDataSet
from brand.stores.url import Url, is_url, parse_url
from tests.tools.objects import S3, ObjectStore

PARTS = st.text("abcXYZ019-_.=+ ü", min_size=1, max_size=8).filter(
    lambda part: part.strip() == part and part not in "."
)
HOSTS = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,20}[a-z0-9])?", fullmatch=True)


@given(st.sampled_from(["s3", "gs", "az", "http", "https", "hf", "abfs"]), HOSTS, st.lists(PARTS, max_size=4))
def test_a_url_names_a_folder_of_a_store(scheme: str, host: str, parts: list[str]) -> None:
    """Written and read again it is the same; a slash at its end makes no difference."""
    if ".." in parts:
        return
    url = Url(scheme, host, "/".join(parts))
    assert parse_url(str(url)) == parse_url(f"{url}/") == url
    assert url.key("a/b") == "/".join([*parts, "a/b"])
    assert url.child("a/b") == f"{url}/a/b"
    assert is_url(str(url))


@pytest.mark.parametrize(
    "text", ["/data/photos.brand", "photos.brand", "C:\\photos", "s3:/bucket/x", "", ":/", 7, None]
)
def test_what_is_no_url_is_a_path(text: object) -> None:
    """Also where it looks a little like one."""
    assert not is_url(text)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("s3://key:secret@bucket/x", "a URL must not hold a user or password"),
        ("https://secret@host/x", "a URL must not hold a user or password"),
        ("https://host/x?sig=secret", "a URL must not hold a query"),
        ("az://container/x#secret", "or a fragment"),
        ("s3:///x", "names no bucket or host"),
        ("s3://bucket/../other", "must not be empty"),
        ("s3://bucket/a//b", "must not be empty"),
        ("s3://bucket/%2e%2e/b", "must not be empty"),
        ("http://host:port/x", "is not a URL"),
        ("s3://" + 5000 * "x", "5,005 characters"),
    ],
)
def test_what_may_not_stand_in_a_url(text: str, told: str) -> None:
    """The message says what is wrong, and shows no secret."""
    with pytest.raises(UsageError, match=told) as caught:
        parse_url(text)
    assert "secret" not in str(caught.value)


def test_a_home_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The index of a data set at a URL has no place: the error says which variable gives it one."""
    (tmp_path / "file").write_text("no folder")
    with ObjectStore(flavour=S3()) as store:
        store.folder.make_bucket("bucket")
        pack([{"number": 1}], store.folder.root / "bucket" / "set.brand", {"number": "int"}, jobs=1)
        monkeypatch.setenv("AWS_ENDPOINT_URL", store.url)
        monkeypatch.setenv("AWS_SKIP_SIGNATURE", "true")
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
        with pytest.raises(
            StorageError, match=r"cannot store the index in .*: set XDG_CACHE_HOME to a folder that you"
        ):
            StoredDataSet("s3://bucket/set.brand")
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        assert len(StoredDataSet("s3://bucket/set.brand")) == 1
