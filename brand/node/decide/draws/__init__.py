"""When is a draw answered, and with which samples?

draws      when a draw is answered, and with which samples
taking     the effects of drawn samples on epochs and runs
fetches    samples that clients request by index
divisions  clients that ask which positions are theirs
late       draws that wait too long
jobs       the statistics of jobs
"""
