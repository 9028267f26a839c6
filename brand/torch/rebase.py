"""What becomes of a state of an older version of a collection? It fits that version exactly, and no other one.

The order of an epoch is one of all samples, so new samples change it: no position of the old order says which samples
of the new one were drawn. `rebase` therefore begins the epoch of the state anew.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from brand.errors import UsageError
from brand.formats.version import number_within

if TYPE_CHECKING:
    from brand.torch.dataset import BrandDataset
    from brand.torch.sampler import BrandSampler

log = logging.getLogger("brand")


def other_data_set(found: str, data_set: BrandDataset) -> str:
    """Why a state of the data set with the id `found` is refused, and what to do."""
    version = data_set.version
    number = None if version is None else number_within(version.collection, found)
    if version is None or number is None:
        return f"the state is of data set {found}, this one is {data_set.id}"
    if number == version.number:
        return f"the state is of another collection, which has grown from the same beginning as {data_set.name}"
    return (
        f"the state is of version {number} of the collection, and this is {data_set.name}: open "
        f"'{data_set.path}@{number}' to go on exactly where it stopped, or begin its epoch anew on this "
        "version, `load_state_dict(brand.rebase(state, sampler))`"
    )


def rebase(state: Mapping[str, Any], sampler: BrandSampler) -> dict[str, Any]:
    """The state of a run that goes on with another version of its collection: at the beginning of the state's epoch.

    Samples that were drawn in that epoch are drawn again in it; the log says how many. `sampler` draws from the new
    version, with the seed of the state. Give the result to `load_state_dict` of the sampler or its loader. Raises
    `UsageError` for a state of another data set or with another seed.
    """
    try:
        epoch, position, order = int(state["epoch"]), int(state["position"]), state["order"]
        found, seed, shuffle = str(order["data_set"]), order["seed"], state["shuffle"]
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(f"this is no state of a BrandSampler: {error!r}") from None
    data_set, version = sampler.data_set, sampler.data_set.version
    if found == data_set.id:
        return dict(state)
    number = None if version is None else number_within(version.collection, found)
    if version is None or number in (None, version.number):
        raise UsageError(other_data_set(found, data_set))
    if (seed, shuffle) != (sampler.seed, sampler.shuffle):
        raise UsageError(
            f"the state has seed {seed} and shuffle={shuffle}: make the sampler with the same, not with seed "
            f"{sampler.seed} and shuffle={sampler.shuffle}"
        )
    if position:
        said = "epoch %d begins anew on %s: the first %d samples of it on version %d are drawn again"
        log.warning(said, epoch, data_set.name, position, number)
    return sampler.state_at(epoch, 0)
