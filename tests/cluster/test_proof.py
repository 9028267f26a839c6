"""The token is proved and never sent; a proof is good for one greeting, once."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from brand.cluster.greeting import LIFE_S, MAX_USED, NONCE, Nonces, PeerHello, Token
from brand.errors import ProtocolError, UsageError


class Clock:
    """A clock that a test turns."""

    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@given(st.integers(0, (1 << 32) - 1), st.binary(max_size=100))
def test_a_hello_comes_back_as_it_was(to: int, greeting: bytes) -> None:
    """With both nonces; each has a nonce of its own."""
    hello = PeerHello(to, Nonces().make(), greeting)
    assert PeerHello.from_bytes(hello.to_bytes()) == hello
    assert PeerHello(to, hello.nonce, greeting).own != hello.own


@pytest.mark.slow
@given(st.binary(max_size=99))
def test_half_a_hello(data: bytes) -> None:
    """Is an error."""
    with pytest.raises(ProtocolError, match="an incomplete hello"):
        PeerHello.from_bytes(data)


def test_every_proof_is_another_one() -> None:
    """By token, by role, by what was said, and by where one part ends and the next begins."""
    one, two = Token("a" * 16), Token("b" * 16)
    proofs = [
        one.of_asking(b"xy"),
        two.of_asking(b"xy"),
        one.of_asking(b"xyz"),
        one.of_answering(b"xy", b""),
        one.of_answering(b"x", b"y"),
        one.of_answering(b"x", b"z"),
        one.of_answering(b"", b"xy"),
        two.of_answering(b"x", b"y"),
    ]
    assert len(set(proofs)) == len(proofs)
    assert one.of_asking(b"xy") == Token("a" * 16).of_asking(b"xy")


def test_a_token_is_long_and_not_shown() -> None:
    """A short one can be guessed; one that is logged is known."""
    with pytest.raises(UsageError, match="at least 16 characters"):
        Token("a" * 15)
    assert "secret" not in repr(Token("secret" * 5))


def test_a_nonce_is_good_once() -> None:
    """And only at the node that made it."""
    nonces = Nonces()
    nonce = nonces.make()
    assert len(nonce) == NONCE
    assert not Nonces().use(nonce)
    assert nonces.use(nonce)
    assert not nonces.use(nonce)
    assert nonces.use(nonces.make())


@given(st.binary(max_size=2 * NONCE), st.integers(0, 8 * NONCE - 1))
def test_a_nonce_that_was_not_made_here(data: bytes, bit: int) -> None:
    """Of any length, or with one bit changed."""
    nonces = Nonces()
    nonce = int.from_bytes(nonces.make())
    assert not nonces.use(data)
    assert not nonces.use((nonce ^ 1 << bit).to_bytes(NONCE))


@given(st.lists(st.tuples(st.sampled_from(["make", "use", "again"]), st.floats(0, LIFE_S)), max_size=40))
def test_a_nonce_lives_half_its_life_at_least_and_all_of_it_at_most(steps: list[tuple[str, float]]) -> None:
    """Whenever it is made and used; it is never good twice."""
    clock = Clock()
    nonces = Nonces(clock)
    made: list[tuple[bytes, float]] = []
    used: set[bytes] = set()
    for action, passed_s in steps:
        clock.now_s += passed_s
        if action == "make" or not made:
            made.append((nonces.make(), clock.now_s))
            continue
        nonce, made_s = made[-1] if action == "use" else made[len(made) // 2]
        age_s = clock.now_s - made_s
        good = nonces.use(nonce)
        if nonce in used or age_s >= LIFE_S:
            assert not good
        elif age_s < LIFE_S / 2:
            assert good
        used |= {nonce} if good else set()


def test_nonces_in_use_have_a_bound() -> None:
    """It is reached by nobody without the token, and passes."""
    clock = Clock()
    nonces = Nonces(clock)
    assert all(nonces.use(nonces.make()) for _ in range(MAX_USED))
    assert not nonces.use(nonces.make())
    clock.now_s += LIFE_S
    assert nonces.use(nonces.make())
