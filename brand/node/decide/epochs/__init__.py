"""When does an epoch begin and end?

epochs  when an epoch begins and ends, and the plans that the planner has to make
pacing  the draw rates of runs
"""
