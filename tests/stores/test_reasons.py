"""In words, and without secrets: why did a store not do what it was asked?"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brand.stores.reasons import failed, reason_of, without_secrets

ANSWER = "Generic S3 error: Server returned non-2xx status code: 403 Forbidden: <Error><Code>{}</Code></Error>"


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (ANSWER.format("ExpiredToken"), "the credentials have expired: renew them"),
        (ANSWER.format("RequestTimeTooSkewed"), "the clock of this machine is wrong"),
        (ANSWER.format("AccessDenied"), "these credentials do not permit this request (403 Forbidden)"),
        (ANSWER.format("Unheard"), "the store answers Unheard (403 Forbidden)"),
        (
            "Received redirect without LOCATION, this normally indicates ...",
            "set AWS_REGION to the region of the bucket",
        ),
        ("error sending request: dns error: no such host", "the name of the host is not known"),
        ("something else\nDebug source: Generic { store }", "something else"),
    ],
)
def test_what_users_can_act_upon(said: str, told: str) -> None:
    """In one line."""
    assert told in reason_of(OSError(said))
    assert "\n" not in reason_of(OSError(said))


@given(st.text("abc/&=%", max_size=30), st.text("abc", min_size=1, max_size=9))
def test_no_query_and_no_user_of_a_url_is_shown(query: str, host: str) -> None:
    """They hold signatures and passwords."""
    shown = without_secrets(f"GET https://S3CR3T:x@{host}/path?S3CR3T={query} failed")
    assert "S3CR3T" not in shown
    assert f"https://{host}/path failed" in shown


def test_an_error_is_an_oserror_of_its_kind() -> None:
    """So that callers treat it as one of a file."""
    assert isinstance(failed(FileNotFoundError("x"), "s3://b/k"), FileNotFoundError)
    assert isinstance(failed(PermissionError("x"), "s3://b/k"), PermissionError)
    assert failed(ValueError("x"), "s3://b/k").filename == "s3://b/k"
    assert len(str(failed(ValueError("x" * 5000), "s3://b/k").strerror)) <= 300
