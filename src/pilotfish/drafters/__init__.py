"""Drafters: whatever proposes tokens, one file per kind behind the contract in `base.py`."""
