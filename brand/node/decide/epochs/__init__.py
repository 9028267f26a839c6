"""When does an epoch begin and end?

epochs   when an epoch begins and ends
makings  how an epoch begins whose plan is made
plans    which plans the planner has to make
pacing   how fast runs draw
"""
