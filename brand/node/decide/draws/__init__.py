"""When is a draw answered, and with what?

draws      when, and with what
taking     what follows when ranks take samples
fetches    samples that clients fetch by name
divisions  clients that ask which positions are theirs
late       which draws wait too long
jobs       what users see of jobs
"""
