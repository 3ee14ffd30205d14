"""Log probabilities of a token and of the most probable ones, from one row of scores.

Knows no option: a row of logits gives those of the model's own law, a row of final scores those of the final law.
"""

from dataclasses import dataclass

import numpy as np

from pilotfish.sampling.candidates import Scores, highest, log_normaliser, ranking


@dataclass(frozen=True, slots=True)
class Alternative:
    """A token in the place of another.

    Attributes:
        token: its id.
        logprob: natural logarithm of its probability.
        rank: 1 for the most probable token; of equally probable ones the lowest id comes first.
    """

    token: int
    logprob: float
    rank: int


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """The delivered token, and the most probable ones from the top."""

    token: Alternative
    top: tuple[Alternative, ...]


def token_logprobs(scores: Scores, token: int, count: int) -> TokenLogprobs:
    """Log probabilities under softmax(scores), in float64: of `token`, and of the `count` most probable tokens.

    Tokens of probability 0 are not listed among the most probable.
    """
    normaliser = log_normaliser(scores)
    own = scores[token]
    rank = 1 + int((scores > own).sum()) + int((scores[:token] == own).sum())
    places = highest(scores, count) if count else np.zeros(0, dtype=np.int64)
    places = places[scores[places] > -np.inf]
    top = [
        Alternative(int(place), float(scores[place]) - normaliser, number)
        for number, place in enumerate(places[ranking(scores[places])], start=1)
    ]
    return TokenLogprobs(Alternative(token, float(own) - normaliser, rank), tuple(top))
