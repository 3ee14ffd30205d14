"""A local model as the reference of the endpoint level: its law of the next token, by the token's text.

Owns the translation between a server's tokens, which are texts, and ids. The server must run the same weights; where
it stores them in less precision, its law differs by that much, and a long enough test will see it.
"""

from collections import defaultdict

import numpy as np

from pilotfish.audit import oracle
from pilotfish.models.base import Segment
from pilotfish.models.loading import Model


class LocalReference:
    """The law of a model at temperature 1, remembered for the prefixes asked for."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._texts = [model.tokenizer.decode([token]) for token in range(model.tokenizer.vocab_size)]
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
        ids = list(self._model.tokenizer.encode(prompt))
        for text in before:
            candidates = self._ids.get(text, [])
            if len(candidates) != 1:
                return None
            ids.append(candidates[0])
        executor = self._model.executor
        sequence = executor.open(len(ids))
        try:
            logits = executor.forward([Segment(sequence, ids, logits_from=len(ids) - 1)]).logits[0]
        finally:
            executor.close(sequence)
        law = oracle.softmax(logits[: len(self._texts)].double().cpu().numpy())
        merged: dict[str, float] = defaultdict(float)
        for token in np.flatnonzero(law):
            merged[self._texts[token]] += float(law[token])
        return dict(merged)
