"""A cluster of nodes: streams between their servers, and the check of each node. Only this package imports grpc.

peers      PeerStreams: the streams to and from all other nodes
asking     a stream to one node, opened again whenever it ends
answering  the server to which the other nodes open their streams
streams    open streams, their events, and the messages under way on each
greeting   the settings that must be equal on all nodes, and a proof that the other side knows the token
options    settings of gRPC
certificates  the certificates of a node, also after they were renewed
process    a data server that is one of several, and its process, which a training starts
serving    reports about the other nodes, for a server started by a user
launcher   the commands that start all nodes, and their hosts
supervisor runs these commands, together
namespaces nodes in network namespaces of one machine
"""
