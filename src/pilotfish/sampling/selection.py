"""The first steps of a pipeline in one native look at the logits: penalties, the most probable tokens, temperature.

Owns the choice between that and the steps one by one, which stay the reference: both give the same bits. What makes it
fast is that most logits are read once and compared: penalties mostly lower logits, so that only those of the tokens
that were highest before have to be computed, however long the history is.
"""

from collections.abc import Sequence

import numpy as np

from pilotfish.sampling.candidates import Candidates
from pilotfish.sampling.extension import extension
from pilotfish.sampling.penalties import OutputPenalty, RepetitionPenalty
from pilotfish.sampling.prefix import Prefix
from pilotfish.sampling.rows import Rows
from pilotfish.sampling.step import Step, Truncation
from pilotfish.sampling.truncation import Greedy, Temperature, TopK


def selected(
    logits: Rows,
    vocab_size: int,
    prefixes: Sequence[Prefix],
    on_rows: Sequence[Step],
    truncations: Sequence[Truncation],
) -> tuple[Candidates, Sequence[Truncation]] | None:
    """What `on_rows` and the first of `truncations` leave of the first `vocab_size` columns, and the other truncations.

    Args:
        logits: left as they are.

    Returns:
        `None` where this way is not open.
    """
    native = extension()
    if native is None or not logits.flags.c_contiguous or not prefixes or not truncations:
        return None
    # Exactly these types: a step derived from one of them may do something else.
    penalties = [step for step in on_rows if type(step) is RepetitionPenalty or type(step) is OutputPenalty]
    first, *rest = truncations
    greedy = type(first) is Greedy
    count = 1 if greedy else first.k if type(first) is TopK else vocab_size
    if len(penalties) < len(on_rows) or not 0 < count < vocab_size:
        return None
    divisor = None
    if rest and type(rest[0]) is Temperature:
        divisor, rest = rest[0].divisor, rest[1:]
    forms = [(*step.native_form, step.counts(prefixes)) for step in penalties]
    paths = [prefix.path for prefix in prefixes]
    ids, scores, regular = native.penalised_rows(logits, vocab_size, forms, paths, count, divisor)
    if not greedy:
        return Candidates(ids, scores, highest_is_zero=divisor is not None), rest
    # NumPy's argmax takes the first number that is none.
    return (Candidates(ids, np.zeros_like(scores)), rest) if regular else None
