"""The first steps of a pipeline in one native look at the logits: penalties, then the most probable tokens.

Owns the choice between that and the steps one by one, which stay the reference: both give the same bits. What makes it
fast is that the native code takes one row after another into a place that stays in its core's cache, changes the logits
that penalties touch there, and looks for the best at once.
"""

from collections.abc import Sequence

import numpy as np

from pilotfish.sampling.candidates import Candidates
from pilotfish.sampling.extension import extension
from pilotfish.sampling.penalties import CountPenalty, OutputPenalty, RepetitionPenalty
from pilotfish.sampling.prefix import Prefix
from pilotfish.sampling.rows import Rows
from pilotfish.sampling.step import Step
from pilotfish.sampling.truncation import Greedy, TopK


def selected(
    logits: Rows, vocab_size: int, prefixes: Sequence[Prefix], on_rows: Sequence[Step], truncation: Step
) -> Candidates | None:
    """What `on_rows` and then `truncation` leave of the first `vocab_size` columns; `None` where this way is not open.

    Args:
        logits: left as they are.
    """
    # Exactly these types: a step derived from one of them may do something else.
    penalties = [
        step for step in on_rows if isinstance(step, CountPenalty) and type(step) in (RepetitionPenalty, OutputPenalty)
    ]
    greedy = type(truncation) is Greedy
    count = 1 if greedy else truncation.k if type(truncation) is TopK else vocab_size
    native = extension()
    possible = logits.flags.c_contiguous and 0 < count < vocab_size and len(prefixes) > 0
    if native is None or not possible or len(penalties) < len(on_rows):
        return None
    forms = [(*step.native_form, *step.counts(prefixes)) for step in penalties]
    ids, scores, regular = native.penalised_rows(logits, vocab_size, forms, count)
    if not greedy:
        return Candidates(ids, scores)
    # NumPy's argmax takes the first number that is none.
    return Candidates(ids, np.zeros_like(scores)) if regular else None
