"""The engine: rounds over a batch of requests, and what lives around them. Read `round.py` first."""
