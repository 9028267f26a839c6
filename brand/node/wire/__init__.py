"""The messages between processes, and the connections that carry them.

numbers          types for the numbers of clients, nodes and runs
messages         kinds of messages, and their framing
described        a dataclass as the description of a message
client_messages  requests of clients to a server
replies          replies of a server
lease, taking    the messages of each batch
looping          the waits of training loops
prepared         decode specs, and decoded samples in memory
peer_messages    messages between data servers
drawing          the processes and ranks that draw
joining          the points at which a run joined other runs
samples          stored bytes of samples, some of which may be missing
preparer         messages between a server and a decode worker
connection       Unix sockets: addresses, and the split of bytes into messages
network          the interface to the transport between nodes
"""
