"""What does a node server do next? Pure: stimuli in, instructions out; no socket, thread, clock or file.

turn           all decisions of a node: `handle` and `step`; it turns features on
core           the steps of one node, as far as it needs no feature
stimuli        what happens to a node

Words and state that all share:

features       the hooks by which features take part
tasks          instructions: what the server has to do
choosing       what memory keeps, and what the cache folder holds: the choice of the planner
counters       what the server has done so far
members        which nodes exist, and which node owns what
runs           trainings, and the ranks and nodes that draw in them
account        whether all positions were drawn
lives          where in its life an epoch is
epoch          the progress of one epoch
division       which rank draws which position
draw           one request that waits
states         the state of each sample of an epoch
progress       how far the ranks have drawn an epoch
read_queue     which reads of an epoch have not started
limits         which samples are held, or sent

The life of an epoch:

epochs         when an epoch begins and ends
makings        how an epoch begins whose plan is made
plans          which plans the planner has to make
pacing         how fast runs draw

When a draw is answered:

draws          when, and with what
taking         what follows when ranks take samples
fetches        samples that clients fetch by name
divisions      clients that ask which positions are theirs
late           which draws wait too long
jobs           what users see of jobs

What is read next:

reads          which read starts next
stripes        which operations bring what is absent of the next reads
gaps           whether gaps are read through
wholes         reads of neighbouring samples
under_way      which reads have started and not ended

The memory cache and the cache folder:

keeping        when the node chooses kept samples anew
caching        what the cache folder holds
placing        which placement it has
writing        what is written to it
leaving        what leaves it

Feature: several nodes:

peering        what a node says and does for others, and they for it
peers          which nodes can be reached, and their credit
telling        what nodes tell each other about their draws
disagreements  which runs cannot go on, because nodes disagree
sending        what this node sends to other nodes
outgoing       what one other node still has to get of an epoch
receiving      what other nodes send to this node, and what it asks them for
answering      samples that other nodes fetch by name

Feature: jobs that share reads:

job_sharing    their part in the steps of a node
sharing        where jobs join each other
pacemakers     which job makes the pace
lockstep       which draws wait for slower jobs
early          what a job holds that another one has read
leading        who decides, on several nodes, where a job joins
joinings       what nodes tell each other of joins
fronts         how far ranks of other nodes have drawn

Feature: orders that are decided while jobs draw:

growth         how far each order is decided
growing_orders the orders, and what clients have asked of each
growing_epoch  the progress of such an epoch
rounds         what jobs draw next

Feature: server-side decoding:

preparing      what decode workers do next, and what a draw gets of it
preparers      which decode workers are there
wants          what clients want decoded
ahead          which samples are decoded next
allotting      for which rank a decode worker works next
allotment      how many threads each queue would get
costs          how long it takes to decode a sample
clearing       which decoded samples make room
"""
