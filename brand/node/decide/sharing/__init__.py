"""Feature: jobs that share reads. It decides at which point of the shared order a job joins, and which draws wait.

job_sharing    jobs that wait for slower jobs, or hold samples that another job has read
joins          at which point jobs join each other, and the fastest job, which leads
consensus      agreement of several nodes on the join of a job
join_messages  messages between nodes about joins and the progress of their ranks
"""
