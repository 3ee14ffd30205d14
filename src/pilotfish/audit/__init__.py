"""The auditor: proves, or disproves, that speculation leaves the law and the tokens of the output as they are.

`run.py` is the way in. `oracle.py` is an independent float64 account of what should come out and shares no code with
what is tested; everything else drives the production path and compares.
"""
