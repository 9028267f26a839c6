"""A cluster of nodes: streams between their servers, and the check of each node. Only this package imports grpc.

peers      PeerStreams: the streams to and from all other nodes
asking     a stream to one node, opened again whenever it ends
answering  the server to which the other nodes open their streams
streams    open streams and their events
link       messages under way to one node
parcel     sends small messages together
greeting   the settings that must be equal on all nodes
proof      a proof that the other side knows the token
tls        certificates
options    settings of gRPC
address    host and port
member     a data server that is one of several
process    the process of such a server, started by a training
serving    reports about the other nodes, for a server started by a user
launcher   the commands that start all nodes, and their hosts
supervisor runs these commands, together
namespaces nodes in network namespaces of one machine
"""
