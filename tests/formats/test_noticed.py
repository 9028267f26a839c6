"""What was noticed: sentences, sums, and the form in a manifest."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from brand.formats import heads, noticed
from brand.formats.header import Schema
from brand.formats.noticed import Noticed, added, facts_of, from_json, look, merged, to_json
from brand.formats.record import encode_records
from tests.formats.test_heads import CASES

TEMPLATE = "{count} row[s] [has|have] no text and [is|are] left out; it cost[s|] [|them]"
FACT = Noticed("rows_skipped", 1, "row 7", TEMPLATE)


def test_a_sentence_agrees_with_its_count() -> None:
    """One, several, and thousands."""
    assert FACT.text == "1 row has no text and is left out; it costs "
    assert replace(FACT, count=2).text == "2 rows have no text and are left out; it cost them"
    assert replace(FACT, count=3112).text.startswith("3,112 rows")
    assert replace(FACT, count=1, example="[x|y]{count}").text == FACT.text


def test_every_sentence_about_images_reads_well() -> None:
    """No bracket or brace is left, and both forms end without a blank."""
    for trait in heads.TRAITS:
        for count in (1, 2):
            facts = facts_of({("image", trait): (count, 0, "a"), ("image", "images"): (10, 0, "a")}, {})
            assert not set("[]{}|") & set(facts[0].text), facts[0].text


def test_counts_are_added_in_any_order() -> None:
    """The example is that of the smallest index."""
    one = {("image", heads.CMYK): (2, 5, "five")}
    two = {("image", heads.CMYK): (1, 3, "three"), ("mask", heads.CMYK): (1, 9, "nine")}
    assert added(one, two) == added(two, one)
    assert added(one, two)["image", heads.CMYK] == (3, 3, "three")
    assert added() == {}


def test_facts_are_merged_by_what_and_field() -> None:
    """The first example stays."""
    facts = merged([FACT, replace(FACT, field="text"), replace(FACT, count=4, example="row 9")])
    assert [(fact.field, fact.count, fact.example) for fact in facts] == [("", 5, "row 7"), ("text", 1, "row 7")]


def test_look_counts_each_field() -> None:
    """Two fields of images, keys, and a sample without an image."""
    schema = Schema.parse({"n": "int", "image": "image", "text": "str", "mask": "image", "key": "str"})
    samples = [
        {"n": 1, "image": CASES["jpeg turned"][0], "text": "a", "mask": CASES["palette png"][0], "key": "ä.jpg"},
        {"n": 2, "image": CASES["plain jpeg"][0], "text": "", "mask": b"", "key": "b"},
        {"n": 3, "image": CASES["jpeg turned"][0], "text": "a", "mask": CASES["palette png"][0], "key": "c"},
    ]
    found = look(schema, encode_records(schema, samples, range(3)), np.array([9, 4, 2]))
    assert found == {
        ("image", "images"): (3, 2, "c"),
        ("image", heads.TURNED): (2, 2, "c"),
        ("mask", "images"): (2, 2, "c"),
        ("mask", heads.PALETTE): (2, 2, "c"),
    }


def test_samples_without_keys_are_named_by_index() -> None:
    """As `brand cat` names them."""
    schema = Schema.parse({"image": "image"})
    records = encode_records(schema, [{"image": CASES["jpeg turned"][0]}], range(1))
    assert look(schema, records, np.array([7]))["image", heads.TURNED] == (1, 7, "7")


def test_a_data_set_that_is_all_grey_has_no_fact() -> None:
    """A mixture has one."""
    counts = {("image", heads.GREY): (3, 0, "a"), ("image", "images"): (3, 0, "a")}
    assert facts_of(counts, {}) == ()
    assert facts_of(counts | {("image", "images"): (4, 0, "a")}, {})[0].count == 3


def test_facts_come_back_from_json() -> None:
    """All of them."""
    facts = (FACT, replace(FACT, count=2, field="x", example="\u202e[a|b]"))
    assert from_json(to_json(facts)) == facts


@pytest.mark.parametrize(
    "wrong",
    [
        "text",
        [1],
        [{"what": "a"}],
        [to_json([FACT])[0] | {"count": 0}],
        [to_json([FACT])[0] | {"count": True}],
        [to_json([FACT])[0] | {"what": "A b"}],
        [to_json([FACT])[0] | {"example": "x" * 1001}],
        [to_json([FACT])[0] | {"template": None}],
        to_json([FACT]) * (noticed.MAX_NOTICED + 1),
    ],
)
def test_wrong_facts_are_refused(wrong: Any) -> None:
    """With an error that a manifest turns into a `LayoutError`."""
    with pytest.raises((ValueError, KeyError, TypeError)):
        from_json(wrong)


def test_images_of_lists_count_each() -> None:
    """The example is the sample with the smallest index; lists that are all grey have no fact, of any lengths."""
    turned, palette, grey = (CASES[name][0] for name in ("jpeg turned", "palette png", "grey jpeg"))
    schema = Schema.parse({"images": "list[image]", "key": "str"})
    lists = [[palette, turned], [], [turned, turned], [palette]]
    samples = [{"images": files, "key": f"s{at}"} for at, files in enumerate(lists)]
    found = look(schema, encode_records(schema, samples, range(4)), np.array([7, 1, 3, 2]))
    assert found["images", heads.TURNED] == (3, 3, "s2")
    assert found["images", heads.PALETTE] == (2, 2, "s3")
    facts = {fact.what: fact.count for fact in facts_of(found, {})}
    assert facts == {heads.TURNED: 3, heads.PALETTE: 2}
    greys = encode_records(schema, [{"images": [grey] * at, "key": ""} for at in range(3)], range(3))
    assert facts_of(look(schema, greys, np.arange(3)), {}) == ()
    assert look(schema, encode_records(schema, [{"images": [], "key": ""}], range(1)), np.arange(1)) == {}
