"""A local model as the reference of the endpoint level: its law of the next token, by the token's text.

Owns the translation between a server's tokens, which are texts, and ids. The server must run the same weights; where
it stores them in less precision, its law differs by that much, and a long enough test will see it.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence

import numpy as np

from pilotfish.audit import oracle
from pilotfish.models.base import Executor, Segment


class LocalReference:
    """The law of a model at temperature 1, remembered for the prefixes asked for.

    Args:
        executor: runs the model.
        encode, decode: of its tokenizer.
        vocab_size: ids that the tokenizer knows.
    """

    def __init__(
        self,
        executor: Executor,
        encode: Callable[[str], Sequence[int]],
        decode: Callable[[Sequence[int]], str],
        vocab_size: int,
    ) -> None:
        self._executor = executor
        self._encode = encode
        self._texts = [decode([token]) for token in range(vocab_size)]
        self._ids: dict[str, list[int]] = defaultdict(list)
        for token, text in enumerate(self._texts):
            self._ids[text].append(token)
        self._laws: dict[tuple[str, tuple[str, ...]], dict[str, float] | None] = {}

    def __call__(self, prompt: str, before: tuple[str, ...]) -> dict[str, float] | None:
        """The law of the token after these; `None` where a text does not say which token it was."""
        key = (prompt, before)
        if key not in self._laws:
            self._laws[key] = self._law(prompt, before)
        return self._laws[key]

    def _law(self, prompt: str, before: tuple[str, ...]) -> dict[str, float] | None:
        ids = list(self._encode(prompt))
        for text in before:
            candidates = self._ids.get(text, [])
            if len(candidates) != 1:
                return None
            ids.append(candidates[0])
        sequence = self._executor.open(len(ids))
        try:
            logits = self._executor.forward([Segment(sequence, ids, logits_from=len(ids) - 1)]).logits[0]
        finally:
            self._executor.close(sequence)
        law = oracle.softmax(logits[: len(self._texts)].double().cpu().numpy())
        merged: dict[str, float] = defaultdict(float)
        for token in np.flatnonzero(law):
            merged[self._texts[token]] += float(law[token])
        return dict(merged)
