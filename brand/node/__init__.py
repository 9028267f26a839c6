"""The node server: reads ahead into bounded memory that its clients share, and answers draws.

memory      how much memory samples may take
choose      which order a data set, its memory and its storage ask for
arena       pages of shared memory
pages       how large pages are, and how many a sample takes
residents   which samples are in memory, and who needs them
keeping     which samples are kept, and when they are chosen anew
epoch       how far one epoch is
epochs      which epochs are under way, and who draws from them
runs        what is known of a run, and what nodes and ranks say that draw
turns       which rank draws which position
account     which positions were drawn, and whether a training leaves some out
leases      which samples clients are copying
core        what to do next: all decisions, no I/O
members     which nodes serve a data set together, and who owns what
outgoing    what one other node is still to be sent
remote      what this node sends to others, and what becomes of what they send: decisions
fetches     samples by name from other nodes
exchange    decisions to messages between nodes, and back
peer_messages    what nodes say to each other
network     the seam to whatever carries their messages
tasks       what passes between decisions and those who act
executor    the threads that read and plan
messages    what clients and server say to each other
connection  who is at the other end, and where messages begin and end
clients     who is connected
shares      which positions are a rank's own
server      the loop that ties these together
client      the way to a server: starts it, begins, draws
session     one connection of a client: asks, maps the pages, copies
buffers     memory that is used again
launch      how a server comes to life and ends
process     the process of a server
tuning      how that process is set up
lifetime    how long it lives
member      what a server is told that is one of several
tls         the certificates with which servers speak to each other
counters    what was done so far
troubles    what the log says of storage that fails or stalls
repeats     which of many like events get a line in the log
"""
