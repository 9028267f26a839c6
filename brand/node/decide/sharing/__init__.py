"""Feature: jobs that share reads. The package decides at which point of the shared order a job joins, and which draws
wait.

job_sharing  the feature's hooks in the steps of a node
sharing      at which point jobs join each other
pacemakers   the fastest job, which leads
lockstep     draws that wait for slower jobs
early        samples that a job holds because another job read them
leading      agreement of several nodes on the join of a job
joinings     messages between nodes about joins
fronts       progress of the ranks of other nodes
"""
