"""From logits to a law, in one documented order, for target and drafter alike.

Owns the order. Knows no noise, no model and no draft; each step's arithmetic is in its own file. A step is a pure
function of the row's own logits and prefix, and computes a row with the same bits whatever else is in the call:
speculation turns one decode row into many, and must not be seen.

The order (ties everywhere: the lowest id stays or wins; `docs/sampling.md` compares it with vLLM and transformers):

| | option | looks at | what it does |
|---|---|---|---|
| 1 | logit_bias | | adds to logits |
| 2 | repetition_penalty | prompt, output | divides positive logits, multiplies negative ones |
| 3 | frequency_penalty, presence_penalty | output | logit - frequency x count - presence |
| 4 | logits_processors | whatever they like | the caller's own, in the order given |
| 5 | allowed_token_ids, banned_token_ids | | mask |
| 6 | bad_words | output | mask the token that would complete one |
| 7 | no_repeat_ngram_size | prompt, output | masks the tokens that would complete a repeated n-gram |
| 8 | min_tokens | output length | masks end tokens |
| 9 | structured_outputs | output | masks what the grammar does not allow |
| | | | where 4 to 9 leave nothing, the first end token stays |
| 10 | top_k | | the k most probable tokens, exactly k of them |
| 11 | temperature | | `(logits - max) / temperature`; at 0 the most probable token alone, without 10 and 12 to 14 |
| 12 | top_p | | the smallest set of most probable tokens whose mass reaches top_p, crossing token included |
| 13 | min_p | | tokens at least min_p times as probable as the most probable one |
| 14 | typical_p | | the smallest set nearest to the entropy whose mass reaches typical_p, crossing token included |

top_k and temperature commute, as dividing keeps the order; in this one, all that follows top_k touches k tokens only.
Scores are log probabilities up to a constant per row, minus infinity where a token cannot be chosen.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from pilotfish.sampling.candidates import Candidates, softmax
from pilotfish.sampling.grammar import GrammarConstraint
from pilotfish.sampling.masks import AllowedTokens, BannedSequences, BannedTokens, DeadEnd, GrammarMask, NoRepeatNgram
from pilotfish.sampling.params import SamplingParams
from pilotfish.sampling.penalties import LogitBias, OutputPenalty, Processor, RepetitionPenalty
from pilotfish.sampling.prefix import Prefix
from pilotfish.sampling.rows import Rows, rows_of
from pilotfish.sampling.selection import selected
from pilotfish.sampling.step import Step, Truncation
from pilotfish.sampling.truncation import Greedy, MinP, Temperature, TopK, TopP, TypicalP

__all__ = ["Pipeline", "Step", "Truncation", "build_pipeline"]


@dataclass(frozen=True, slots=True)
class Pipeline:
    """The steps of one request, in order; those that only look at scores come last."""

    steps: tuple[Step, ...]
    on_rows: tuple[Step, ...] = field(init=False)
    truncations: tuple[Truncation, ...] = field(init=False)

    def __post_init__(self) -> None:
        truncations = tuple(step for step in self.steps if isinstance(step, Truncation))
        object.__setattr__(self, "on_rows", self.steps[: len(self.steps) - len(truncations)])
        object.__setattr__(self, "truncations", truncations)
        assert (*self.on_rows, *truncations) == self.steps, "truncations come last"

    def candidates(self, logits: Float[Tensor, "row vocab"], prefixes: Sequence[Prefix]) -> Candidates:
        """What the rows may become, with the log law of each, up to a constant."""
        return self.of_rows(rows_of(logits), logits.shape[1], prefixes)

    def of_rows(self, logits: Rows, vocab_size: int, prefixes: Sequence[Prefix]) -> Candidates:
        """`candidates` of the first `vocab_size` columns, from an array that is left as it is."""
        assert len(prefixes) == len(logits), "one prefix per row"
        found, truncations = selected(logits, vocab_size, prefixes, self.on_rows, self.truncations) or (
            Candidates(None, self._changed(logits[:, :vocab_size], prefixes)),
            self.truncations,
        )
        for truncation in truncations:
            found = truncation.candidates(found)
        return found

    def _changed(self, logits: Rows, prefixes: Sequence[Prefix]) -> Rows:
        """The logits after the steps that change them, one by one on a copy."""
        if not self.on_rows:
            return logits
        rows = torch.from_numpy(logits.copy())
        for step in self.on_rows:
            rows = step.apply(rows, prefixes)
        return rows.numpy()

    def scores(self, logits: Float[Tensor, "row vocab"], prefixes: Sequence[Prefix]) -> Float[Tensor, "row vocab"]:
        """float32 log law of every row, up to a constant; minus infinity outside its support."""
        found = self.candidates(logits, prefixes)
        return torch.from_numpy(found.spread(found.scores, -np.inf, logits.shape[1]))

    def laws(self, logits: Float[Tensor, "row vocab"], prefixes: Sequence[Prefix]) -> Float[Tensor, "row vocab"]:
        """float32 probabilities of every row: the softmax of its scores, exactly 0 outside its support."""
        found = self.candidates(logits, prefixes)
        return torch.from_numpy(found.spread(softmax(found), 0.0, logits.shape[1]))


def build_pipeline(
    params: SamplingParams,
    *,
    eos_ids: Sequence[int] = (),
    bad_words: Sequence[Sequence[int]] = (),
    constraint: GrammarConstraint | None = None,
) -> Pipeline:
    """The steps that `params` asks for; an option that is off has none.

    Args:
        eos_ids: the model's end-of-sequence ids.
        bad_words: the token sequences of `params.bad_words`.
        constraint: of `params.structured_outputs`.
    """
    return Pipeline((*_changes(params), *_masks(params, eos_ids, bad_words, constraint), *_truncations(params)))


def end_ids(params: SamplingParams, eos_ids: Sequence[int]) -> tuple[int, ...]:
    """The tokens that end the request, those of the model first."""
    return (*(() if params.ignore_eos else eos_ids), *params.stop_token_ids)


def _changes(params: SamplingParams) -> list[Step]:
    steps: list[Step] = []
    if params.logit_bias:
        steps.append(LogitBias(params.logit_bias))
    if params.repetition_penalty != 1:
        steps.append(RepetitionPenalty(params.repetition_penalty))
    if params.frequency_penalty != 0 or params.presence_penalty != 0:
        steps.append(OutputPenalty(params.frequency_penalty, params.presence_penalty))
    steps.extend(Processor(function) for function in params.logits_processors)
    return steps


def _masks(
    params: SamplingParams,
    eos_ids: Sequence[int],
    bad_words: Sequence[Sequence[int]],
    constraint: GrammarConstraint | None,
) -> list[Step]:
    steps: list[Step] = []
    if params.allowed_token_ids is not None:
        steps.append(AllowedTokens(params.allowed_token_ids))
    if params.banned_token_ids:
        steps.append(BannedTokens(params.banned_token_ids))
    if bad_words:
        steps.append(BannedSequences(bad_words))
    if params.no_repeat_ngram_size > 0:
        steps.append(NoRepeatNgram(params.no_repeat_ngram_size))
    ends = end_ids(params, eos_ids)
    if params.min_tokens > 0 and ends:
        steps.append(BannedTokens(ends, until=params.min_tokens))
    if constraint is not None:
        steps.append(GrammarMask(constraint))
    last_resort = (*ends, *eos_ids)
    if (steps or params.logits_processors) and last_resort:
        steps.append(DeadEnd(last_resort[0]))
    return steps


def _truncations(params: SamplingParams) -> list[Step]:
    if params.greedy:
        return [Greedy()]
    steps: list[Step] = []
    if params.top_k > 0:
        steps.append(TopK(params.top_k))
    if params.temperature != 1:
        steps.append(Temperature(params.temperature))
    if params.top_p < 1:
        steps.append(TopP(params.top_p))
    if params.min_p > 0:
        steps.append(MinP(params.min_p))
    if params.typical_p < 1:
        steps.append(TypicalP(params.typical_p))
    return steps
