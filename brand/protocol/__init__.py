"""Which sample is fetched when, and what must have been read by then? Pure: arrays in, plans out.

order       the numbers that fix the order of every epoch; makes plans
baselines   orders of other systems, to compare with
nextuse     the samples that a node draws again soonest

Policies of orders:

registry    the orders by name
stripe_policy, stripes      the default order
slot_policy, slots          the paper's order (section 3.3)
prefetch    the paper's order on several nodes: requests, and samples that are sent ahead (section 3.4)
flat        JSON of the first two policies
uniform     a uniform shuffle of single samples
pool_policy chunk-wise shuffle, a baseline
shared_policy, following    jobs that follow the fastest job
coordl      jobs in lock step, a baseline
lap_policy  the common part of the two policies above
joader_policy   jobs that fetch the same sample at the same time, a baseline

Orders that are decided while jobs draw:

dependent   JOADER's rounds                 tree        the samples that several jobs still need
growing     an order that is not complete, and the samples that a job has drawn, for its state

Mixtures and batches:

mixed_order the order of a mixture          shares      the member at each position
batching    samples of similar length       packing     packed rows
batch_limits    the numbers that fix how an epoch is cut into batches

Common to all:

policy      the base class of policies      choice      from the options of a user to a policy
plan        the tables of an epoch, and memory over time
mapping     samples, chunks, groups, abstract memory (paper, section 3.2)
part        chosen samples                  joins       where a job joined other jobs
placement   the samples that stay in memory or in a cache folder
owners      the node that owns each chunk   hashing     the node that caches a sample
split       the rank that draws each position, so that ranks first draw samples of their own node
tickets     epoch and position as one int   random      bits and permutations, the same on every machine
dtypes      the smallest type of numpy      packed      a mask of bits
"""

from brand.protocol.shared_policy import Shared as Shared
from brand.protocol.slot_policy import Slots as Slots
from brand.protocol.stripe_policy import Stripes as Stripes
from brand.protocol.uniform import Uniform as Uniform

__all__ = ["Shared", "Slots", "Stripes", "Uniform"]
