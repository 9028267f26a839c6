"""What do processes say to each other, and who is at the other end?

numbers          types for the numbers of clients, nodes and runs
messages         kinds of messages, and how a message travels
described        how one dataclass describes a message
client_messages  what clients ask of a server
replies          what a server answers
lease, taking    the messages of each batch
looping          how training loops wait
prepared         decode specs, and decoded samples in memory
peer_messages    between node servers
drawing          what clients and nodes say of processes and ranks that draw
joining          where a run joined others
samples          stored bytes of samples, some of which may be missing
preparer         between a server and a decode worker
connection       Unix sockets: addresses, and bytes to messages
network          the seam to the transport that carries messages between nodes
"""
