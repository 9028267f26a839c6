"""Feature: jobs that share reads. Where do they join each other, and who waits?

job_sharing  their part in the steps of a node
sharing      where jobs join each other
pacemakers   which job makes the pace
lockstep     which draws wait for slower jobs
early        what a job holds that another one has read
leading      who decides, on several nodes, where a job joins
joinings     what nodes tell each other of joins
fronts       how far ranks of other nodes have drawn
"""
