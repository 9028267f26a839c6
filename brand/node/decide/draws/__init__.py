"""When is a draw answered, and with which samples?

draws      when a draw is answered, with which samples, and the effects on epochs and runs
fetches    samples that clients request by index, and clients that ask which positions are theirs
job_stats  the statistics of jobs, and draws that wait too long
"""
