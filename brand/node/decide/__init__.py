"""What does a node server do next? Pure: stimuli in, instructions out; no socket, thread, clock or file.

turn        all decisions of a node: `handle` and `step`
stimuli     what happens to a node
tasks       instructions: what is to be done
core        one node, as far as it needs no other
draws       when a draw is answered, and with what
reads       which read is started next
keeping     what is kept, and when that is chosen anew
epochs      when an epoch begins and ends
lives       where in its life an epoch is
epoch       the progress of one epoch
states      the state of each of its samples
progress    how far its ranks have drawn
read_queue  which of its reads are still to be started
limits      which samples are held, or sent
runs        trainings, and the ranks and nodes that draw in them
turns       which rank draws which position
divisions   clients that ask which positions are theirs
account     whether all positions were drawn
late        which draws wait too long
members     which nodes there are, and who owns what
peers       which nodes can be reached, and credit
telling     what nodes know of what is drawn
sending     what other nodes are sent
outgoing    what one node is still to be sent of an epoch
receiving   what other nodes send, and are asked for
fetches     samples that clients fetch by name
answering   samples that other nodes fetch by name
counters    what was done so far
"""
