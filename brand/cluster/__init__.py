"""Many nodes as one: streams between their servers, and which nodes are let in. Only this room imports grpc.

peers      Peers: the streams to and from all other nodes
asking     a stream to one node, opened again whenever it ends
answering  the server to which the other nodes open their streams
streams    which streams are open, and what has happened on them
link       what is on its way to one node
parcel     small messages travel together
greeting   what must be the same on all nodes
proof      a proof that the other side knows the token
tls        certificates
options    how gRPC is set up
address    host and port
member     a node server that is one of several
process    the process of such a server, where a training started it
serving    what a server tells about the other nodes, where a user started it
launcher   which commands start all nodes, and where
supervisor runs these commands, together
namespaces nodes in network namespaces of one machine
"""
