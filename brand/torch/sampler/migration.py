"""How does a run continue on a newer version of a collection? `migrate_state` begins the epoch of its state again.

A loader state fits one version exactly. The order of an epoch is one of all samples, so new samples change it: no
position of the old order tells which samples of the new order were fetched.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from brand.errors import UsageError
from brand.formats.version import number_within
from brand.torch.data.drawable import source_of
from brand.torch.data.set_source import SetSource
from brand.torch.order.sequence import other_data_set
from brand.torch.sampler.sampler import BrandSampler, state_at

log = logging.getLogger("brand")


def migrate_state(state: Mapping[str, Any], sampler: BrandSampler) -> dict[str, Any]:
    """Return a state for another version of the collection, at the beginning of the epoch of `state`.

    Samples that were fetched in that epoch are fetched again in it; the log says how many. `sampler` fetches from the
    new version, with the seed of the state. Give the result to `load_state_dict` of the sampler or its loader.

    Raises `UsageError` if the state is of another data set, or has another seed.
    """
    try:
        epoch, position, order = int(state["epoch"]), int(state["position"]), state["order"]
        found, seed, shuffle = str(order["data_set"]), order["seed"], state["shuffle"]
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(f"this is no state of a BrandSampler: {error!r}") from None
    source = source_of(sampler.dataset)
    if not isinstance(source, SetSource):
        raise UsageError(f"migrate_state is for states of a collection, and this sampler fetches from {source.name}")
    if found == source.data.id:
        return dict(state)
    version = source.data.version
    number = None if version is None else number_within(version.collection, found)
    if version is None or number in (None, version.number):
        raise UsageError(other_data_set(found, source.data, source.name))
    if (seed, shuffle) != (sampler.seed, sampler.shuffle):
        raise UsageError(
            f"the state has seed {seed} and shuffle={shuffle}: make the sampler with the same, not with seed "
            f"{sampler.seed} and shuffle={sampler.shuffle}"
        )
    if position:
        said = "epoch %d begins anew on %s: the first %d samples of it on version %d are drawn again"
        log.warning(said, epoch, source.name, position, number)
    return state_at(sampler, epoch, 0)
