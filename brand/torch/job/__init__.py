"""Which rank, node, job and server does this process belong to?

ranks      which rank of how many, on which node, of which job
discovery  how the node servers of a job find each other, and whether its ranks agree
way        which node server a data set draws from
origin     which samplers of several nodes are the same one
"""
