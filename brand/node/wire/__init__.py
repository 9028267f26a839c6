"""What do processes say to each other, and who is at the other end?

numbers        types for the numbers of clients, nodes and runs
messages       between clients and a server
peer_messages  between node servers
drawing        what clients and nodes say of processes and ranks that draw
samples        stored bytes of samples, some of which may be missing
connection     Unix sockets: addresses, and bytes to messages
network        the seam to the transport that carries messages between nodes
"""
