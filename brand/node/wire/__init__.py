"""The messages between processes, and the connections that carry them.

numbers          types for the numbers of clients, nodes and runs
messages         kinds of messages, and their framing
described        a dataclass as the description of a message
client_messages  requests of clients to a server, and its replies
draw_messages    the messages of each batch
looping          the waits of training loops
decoding         decode specs, decoded samples in memory, messages to and from a decode worker
peer_messages    messages between data servers
drawing          the processes and ranks that draw, and the points at which a run joined other runs
connection       Unix sockets: addresses, and the split of bytes into messages
network          the interface to the transport between nodes
"""
