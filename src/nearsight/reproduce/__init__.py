"""Both papers' claims as data, the experiments that test them at several scales, the evidence, and the page of it all.

experiment.py  what an experiment file says        worker.py   one run, in a process of its own
evidence.py    a finished run as one small file    runner.py   the runs that are missing, several side by side
claim.py       what a claims file says             page.py     docs/reproduction.md
"""
