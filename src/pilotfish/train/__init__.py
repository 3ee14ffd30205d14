"""Training drafters: data made by the target itself, and the trainer.

`dataset.py` describes the data on disk, `data.py` makes it.
"""
