"""Runs with figures that a test can add up by hand."""

from pilotfish.bench.measure import Run
from pilotfish.bench.totals import Pair


def made_run(tokens=(1, 2, 3, 4, 5), *, seconds=2.0, first_seconds=1.0, first_tokens=1, **values):
    figures = {
        "token_ids": tuple(tokens),
        "text": "text",
        "seconds": seconds,
        "first_seconds": first_seconds,
        "first_tokens": first_tokens,
        "rounds": len(tokens),
        "drafted_tokens": 0,
        "accepted_tokens": 0,
        "accepted_per_position": (),
        "drafted_per_position": (),
        "draft_sizes": {0: len(tokens) - 1},
        "draft_seconds": 0.0,
        "verify_seconds": 0.5,
    }
    return Run(**{**figures, **values})


def fast_run(tokens=(1, 2, 3, 4, 5), **values):
    """Three rounds: the first without a draft, then one of two drafted tokens accepted, then both."""
    figures = {
        "seconds": 1.5,
        "rounds": 3,
        "drafted_tokens": 4,
        "accepted_tokens": 3,
        "accepted_per_position": (2, 1),
        "drafted_per_position": (2, 2),
        "draft_sizes": {0: 0, 2: 2},
        "draft_seconds": 0.1,
        "verify_seconds": 0.3,
    }
    return made_run(tokens, **{**figures, **values})


def made_pair(plain=None, speculative=None, *, category="chat", question_id=1, turn=0, repeat=0):
    return Pair(category, question_id, turn, repeat, plain or made_run(), speculative or fast_run())
