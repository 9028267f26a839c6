"""When does an epoch begin and end?

epochs   when an epoch begins and ends
makings  how an epoch begins once its plan is made
plans    the plans that the planner has to make
pacing   the draw rates of runs
"""
