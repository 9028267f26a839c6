"""Feature: jobs that share reads. The package decides at which point of the shared order a job joins, and which draws
wait.

job_sharing    the feature's hooks in the steps of a node, and draws that wait for slower jobs
joins          at which point jobs join each other, and the fastest job, which leads
early_holds    samples that a job holds because another job read them
consensus      agreement of several nodes on the join of a job
join_messages  messages between nodes about joins and the progress of their ranks
"""
