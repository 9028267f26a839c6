"""How do several machines convert one folder, if they share only a folder that all of them see?

planning    one plan for all machines
running     one chunk, by any process, or all chunks of a task
sealing     from the chunks to the data set
"""
