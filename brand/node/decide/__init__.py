"""What does a node server do next? Pure: stimuli in, instructions out; no socket, thread, clock or file.

turn           all decisions of a node: `handle` and `step`
stimuli        what happens to a node
tasks          instructions: what the server has to do
core           one node, as far as it needs no other
draws          when a draw is answered, and with what
reads          which read starts next
stripes        which operations bring what is absent of the next reads
under_way      how many reads have started and not ended, and how many may start as one
keeping        when the node chooses kept samples anew
epochs         when an epoch begins and ends
lives          where in its life an epoch is
epoch          the progress of one epoch
states         the state of each sample of an epoch
progress       how far the ranks have drawn an epoch
read_queue     which reads of an epoch have not started
limits         which samples are held, or sent
runs           trainings, and the ranks and nodes that draw in them
division       which rank draws which position
divisions      clients that ask which positions are theirs
account        whether all positions were drawn
late           which draws wait too long
members        which nodes exist, and which node owns what
peers          which nodes can be reached, and their credit
telling        what nodes tell each other about their draws
disagreements  which runs cannot go on, because nodes disagree
sending        what this node sends to other nodes
outgoing       what one other node still has to get of an epoch
receiving      what other nodes send to this node, and what it asks them for
fetches        samples that clients fetch by name
answering      samples that other nodes fetch by name
counters       what the server has done so far
"""
