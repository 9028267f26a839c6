"""When is each sample fetched, and when must each read be finished? Pure: arrays in, plans out.

order       the numbers that fix the order of every epoch; makes plans
baselines   orders of other systems, to compare with
batch_ranks the ranks that draw the positions of planned batches
mixed_batch_ranks   those of planned batches of a mixture
nextuse     the samples that a node draws again soonest
places      the places at some positions of an epoch
policies    the orders, each with its options
mixtures    several data sets as one
batches     FEATURE bucketing and sequence packing
joader      FEATURE orders that are decided while jobs draw
base        plans, and everything that several orders need

Here and in `brand.node`, to *draw* is to ask for the next samples of the order.
"""

from brand.orders.policies.shared_policy import Shared as Shared
from brand.orders.policies.slot_policy import Slots as Slots
from brand.orders.policies.storage_order import StorageOrder as StorageOrder
from brand.orders.policies.stripe_policy import Stripes as Stripes
from brand.orders.policies.uniform import Uniform as Uniform

__all__ = ["Shared", "Slots", "StorageOrder", "Stripes", "Uniform"]
