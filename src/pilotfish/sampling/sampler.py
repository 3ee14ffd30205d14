"""Everything random or lawful about one request: `Sampler`, used for target and drafter alike.

Owns the meeting of pipeline and noise. Knows no draft, no rule and no model; padded columns of a model's logits end
here.
"""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float, Float32, Float64
from torch import Tensor

from pilotfish.sampling.choose import choose, choose_from_logits
from pilotfish.sampling.grammar import Grammar, GrammarConstraint
from pilotfish.sampling.logprobs import TokenLogprobs, token_logprobs
from pilotfish.sampling.noise import Stream, uniforms
from pilotfish.sampling.params import SamplingParams
from pilotfish.sampling.pipeline import build_pipeline
from pilotfish.sampling.prefix import Prefix
from pilotfish.sampling.rows import Rows, rows_of
from pilotfish.sampling.step import Step
from pilotfish.sampling.truncation import Greedy, Temperature


def _only_divisor(steps: Sequence[Step]) -> float | None:
    """What logits are divided by where nothing else is done to them, 0 for nothing at all; `None` where more is."""
    if not steps:
        return 0.0
    return steps[0].divisor if len(steps) == 1 and type(steps[0]) is Temperature else None


class Sampler:
    """Laws, choices and random numbers of one request.

    Logits may be padded: only the first `vocab_size` columns count, so that an id above the real vocabulary can be
    neither chosen nor drafted. What a sampler remembers is a function of the committed tokens; no call changes the
    result of another.
    """

    def __init__(
        self,
        params: SamplingParams,
        vocab_size: int,
        *,
        eos_ids: Sequence[int] = (),
        bad_words: Sequence[Sequence[int]] = (),
        grammar: Grammar | None = None,
    ) -> None:
        """
        Args:
            params: with its seed decided.
            vocab_size: token ids of the tokenizer, without padding.
            eos_ids: the model's end-of-sequence ids, for `min_tokens` and where nothing else is possible.
            bad_words: the token sequences that `params.bad_words` stands for.
            grammar: the compiled `params.structured_outputs`.
        """
        assert params.seed is not None, "a sampler needs a seed: params.with_seed(fresh_seed())"
        self.params = params
        self.seed: int = params.seed
        self.vocab_size = vocab_size
        self.constraint = GrammarConstraint(grammar) if grammar is not None else None
        self.pipeline = build_pipeline(params, eos_ids=eos_ids, bad_words=bad_words, constraint=self.constraint)
        self.takes_highest: bool = self.pipeline.steps == (Greedy(),)
        """Whether the choice is the highest logit, whatever the prefix is."""
        self._divisor = _only_divisor(self.pipeline.steps)

    def choices(self, logits: Float[Tensor, "row padded_vocab"] | Rows, prefixes: Sequence[Prefix]) -> list[int]:
        """The choice of each row at its prefix's position: argmax(scores + noise), plain argmax at temperature 0.

        A drafter that asks for its choices from its own logits draws with the target's noise: it agrees as often as
        the two laws allow.
        """
        rows = rows_of(logits) if isinstance(logits, Tensor) else logits
        assert rows.shape[1] >= self.vocab_size, "logits cover the vocabulary"
        positions = [prefix.position for prefix in prefixes]
        if self._divisor is not None:
            chosen = choose_from_logits(rows, self.vocab_size, self._divisor, self.seed, positions)
            if chosen is not None:
                return chosen
        candidates = self.pipeline.of_rows(rows, self.vocab_size, prefixes)
        if self.params.greedy:
            return candidates.tokens(candidates.scores.argmax(axis=1))
        return choose(candidates, self.seed, positions)

    def laws(
        self, logits: Float[Tensor, "row padded_vocab"], prefixes: Sequence[Prefix]
    ) -> Float32[Tensor, "row vocab"]:
        """The final law of each row, over the real vocabulary."""
        return self.pipeline.laws(self._real(logits), prefixes)

    def raw_logprobs(
        self, logits: Float[Tensor, "row padded_vocab"], tokens: Sequence[int], count: int
    ) -> list[TokenLogprobs]:
        """Log probabilities of one token per row and of the `count` most probable, before any option has acted."""
        rows = self._real(logits).detach().to("cpu", torch.float32).numpy()
        return [token_logprobs(row, token, count) for row, token in zip(rows, tokens, strict=True)]

    def processed_logprobs(
        self, logits: Float[Tensor, "row padded_vocab"], prefixes: Sequence[Prefix], tokens: Sequence[int], count: int
    ) -> list[TokenLogprobs]:
        """Log probabilities of one token per row and of the `count` most probable, under the final law."""
        rows = self.pipeline.scores(self._real(logits), prefixes).numpy()
        return [token_logprobs(row, token, count) for row, token in zip(rows, tokens, strict=True)]

    def draw(self, law: Float[Tensor, "vocab"], position: int, start: int, node: int = 0) -> int:
        """A drafted token from exactly `law` (divided by its sum), by inversion in float64 with the `DRAFT` stream.

        Never a token of probability 0.

        Args:
            position: absolute position of the token drawn.
            start: committed length at the beginning of the round.
            node: the number the token will have in the draft; siblings share a position and differ in this.
        """
        (uniform,) = uniforms(self.seed, Stream.DRAFT, [node], [position], start)
        cumulative = np.cumsum(law.detach().cpu().numpy(), dtype=np.float64)
        assert cumulative[-1] > 0, "a law has mass"
        # The first token whose cumulative mass exceeds the threshold has mass of its own. Rounding may lift the
        # threshold to the whole mass; then it is the last token with mass, where the cumulative one stops growing.
        threshold = min(uniform * float(cumulative[-1]), float(np.nextafter(cumulative[-1], 0)))
        return int(np.searchsorted(cumulative, threshold, side="right"))

    def accept_uniforms(self, positions: Sequence[int], start: int) -> Float64[Tensor, "node"]:
        """One uniform in (0, 1) per node of a draft, for its acceptance test.

        Args:
            positions: `[node]` absolute position of each node's token, in the draft's order.
            start: committed length at the beginning of the round.
        """
        return torch.tensor(
            uniforms(self.seed, Stream.ACCEPT, range(len(positions)), positions, start), dtype=torch.float64
        )

    def resample_uniform(self, position: int, start: int) -> float:
        """The uniform in (0, 1) that draws a round's residual or bonus token.

        Args:
            position: one per round; `start` itself serves, as the place of the residual is not known beforehand.
            start: committed length at the beginning of the round.
        """
        return uniforms(self.seed, Stream.RESAMPLE, [0], [position], start)[0]

    def _real(self, logits: Float[Tensor, "row padded_vocab"]) -> Float[Tensor, "row vocab"]:
        assert logits.shape[-1] >= self.vocab_size, "logits cover the vocabulary"
        return logits[:, : self.vocab_size]
