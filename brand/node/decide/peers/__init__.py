"""Feature: several nodes. The package decides the messages and samples that nodes send each other.

peering        the feature's hooks in the steps of a node, and the messages from and to other nodes
peers          reachability and credit of each other node
announcements  the epochs that each node draws, and runs that the server refuses because nodes disagree
sending        the samples that this node sends to other nodes, by plan or in answer to direct reads
receiving      samples from other nodes, and requests for them
"""
