"""The part of an image that a crop takes: its limits, its distribution, and its place in an image decoded smaller."""

from __future__ import annotations

import math
from itertools import islice
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brand import CenterCrop, DecodeImage, DecodeMask, Pad, RandomResizedCrop, Resize
from brand.errors import UsageError
from brand.formats.crops import Crop, random_numbers
from brand.formats.header import Schema
from brand.formats.preparation import for_server, from_json, to_json

sides = st.integers(1, 3000)
crops = st.sampled_from(
    [
        *(RandomResizedCrop(224), RandomResizedCrop((90, 300), scale=(0.5, 0.5), ratio=(2.0, 3.0))),
        *(CenterCrop(224), CenterCrop((50, 700), resize=256), CenterCrop(7, resize=(9, 8))),
        *(Resize(100), Resize((31, 64)), Pad(128), Pad((60, 300), fill=255)),
    ]
)


@given(crops, sides, sides, st.integers(0, 2**63 - 1))
def test_a_part_is_inside_the_image_also_at_a_fraction_of_its_size(
    crop: Crop, height: int, width: int, seed: int
) -> None:
    at = crop.place(height, width, random_numbers(seed))
    assert crop.shape in (None, at.result)
    for factor in {1, at.factor}:
        there, rows, columns = at.on_grid(factor, height, width), -(-height // factor), -(-width // factor)
        assert 0 <= there.top < there.top + there.height <= rows
        assert 0 <= there.left < there.left + there.width <= columns
        assert abs(there.top * factor - at.top) <= max(factor / 2, factor - 1)
        assert (there.rows, there.columns, there.result) == (at.rows, at.columns, at.result)
    assert at.on_grid(1, height, width) == at
    assert at.factor == 1 or (at.height >= at.rows * at.factor and at.width >= at.columns * at.factor)


def test_random_parts_have_the_areas_and_proportions_that_were_asked_for() -> None:
    """Area and proportion are uniform, and uniform in the logarithm; positions reach all corners."""
    crop, height, width = RandomResizedCrop(10, scale=(0.1, 0.3), ratio=(0.5, 2.0)), 800, 1000
    found = [crop.place(height, width, random_numbers(seed)) for seed in range(4000)]
    areas = np.array([at.height * at.width / (height * width) for at in found])
    proportions = np.log([at.width / at.height for at in found])
    assert 0.099 < areas.min() < 0.101
    assert 0.299 < areas.max() < 0.301
    assert abs(areas.mean() - 0.2) < 0.003
    assert abs(proportions.mean()) < 0.05
    assert np.abs(proportions).max() < math.log(2) + 0.01
    free = [(at.top / (height - at.height), at.left / (width - at.width)) for at in found]
    assert np.abs(np.mean(free, axis=0) - 0.5).max() < 0.02
    assert min(map(min, free)) < 0.01
    assert max(map(max, free)) > 0.99


def test_an_image_that_no_part_fits_gives_its_middle_as_in_torchvision() -> None:
    wide, high = (RandomResizedCrop(8).place(*size, random_numbers(1)) for size in ((10, 1000), (1000, 10)))
    assert (wide.top, wide.left, wide.height, wide.width) == (0, 493, 10, 13)
    assert (high.top, high.left, high.height, high.width) == (493, 0, 13, 10)


def test_random_numbers_never_change() -> None:
    """They fix the crops of runs that users resume."""
    numbers = list(islice(random_numbers(3), 17))
    assert [round(number, 6) for number in (*numbers[:2], numbers[16])] == NUMBERS
    assert all(0 <= number < 1 for number in numbers)


NUMBERS = [0.069091, 0.1389, 0.212348]


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: RandomResizedCrop(0),
        lambda: RandomResizedCrop((1, 2, 3)),  # type: ignore[arg-type]
        lambda: RandomResizedCrop(5, scale=(0.5, 0.2)),
        lambda: RandomResizedCrop(5, scale=(0.5, 1.2)),
        lambda: RandomResizedCrop(5, ratio=(0, 1)),
        lambda: CenterCrop(5, resize="256"),  # type: ignore[arg-type]
        lambda: Resize(True),
        lambda: Resize(2**17),
        lambda: Pad(5, fill=256),
        lambda: DecodeImage(flip=0.5),
        lambda: DecodeImage(normalize=((0.5,), (0.5,))),
        lambda: DecodeImage(crop=Resize(5), size=(5, 5)),
        lambda: DecodeImage(crop=Resize(5), shorter=5),
        lambda: DecodeImage(crop=224),  # type: ignore[arg-type]
        lambda: DecodeImage(crop=Resize(5), filter="lanczos"),
        lambda: DecodeImage(crop=Resize(5), mode="unchanged"),
        lambda: DecodeImage(crop=Resize(5), flip=1.5),
        lambda: DecodeImage(crop=Resize(5), normalize=((0.5,), (0.5,))),
        lambda: DecodeImage(crop=Resize(5), normalize=((0.5,) * 3, (0.5, 0.5, 0))),
        lambda: DecodeMask(crop=Resize(5)),
    ],
)
def test_wrong_crops_are_refused(wrong: Any) -> None:
    with pytest.raises(UsageError):
        wrong()


def test_a_data_server_gets_no_crop() -> None:
    schema = Schema.parse([("image", "image"), ("other", "image")])
    specs = {"image": DecodeImage(crop=Resize(9)), "other": DecodeImage(size=(5, 6))}
    assert list(for_server(specs, schema)) == ["other"]
    assert from_json(to_json(specs["other"])) == specs["other"]
    assert set(to_json(specs["other"])) == {"codec", "shorter", "size", "mode", "filter", "upright", "frame"}
