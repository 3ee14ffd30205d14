"""What a caller gets back. Frozen records in the shape people know from vLLM; owns no logic."""

from dataclasses import dataclass

from pilotfish.terms import FinishReason


@dataclass(frozen=True, slots=True)
class RequestMetrics:
    """Counts and speeds of one request; formulas in `pilotfish.metrics.counters`.

    Attributes:
        rounds: target forwards that delivered tokens.
        tokens_per_round: delivered / rounds, the target's own token included ("mean acceptance length").
        acceptance_rate: accepted / drafted.
        accepted_per_position: delivered drafted tokens by depth in the draft.
        decode_tokens_per_second: tokens after the first delivery / seconds after it; `None` if there were none.
        time_to_first_token: seconds from acceptance of the request to its first delivery.
    """

    rounds: int
    drafted_tokens: int
    accepted_tokens: int
    accepted_per_position: tuple[int, ...]
    tokens_per_round: float
    acceptance_rate: float
    decode_tokens_per_second: float | None
    time_to_first_token: float | None


@dataclass(frozen=True, slots=True)
class CompletionOutput:
    """One continuation of a prompt.

    Attributes:
        index: which of the prompt's samples.
        text: output text, special tokens and what a stop condition cut left out.
        token_ids: delivered tokens, an EOS or stop token included.
        from_draft: for each of them whether a drafter proposed it.
        finish_reason: why it ended.
        seed: replays this output.
    """

    index: int
    text: str
    token_ids: tuple[int, ...]
    from_draft: tuple[bool, ...]
    finish_reason: FinishReason
    seed: int
    metrics: RequestMetrics


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """A prompt and what came of it."""

    prompt: str | None
    prompt_token_ids: tuple[int, ...]
    outputs: tuple[CompletionOutput, ...]


@dataclass(frozen=True, slots=True)
class StreamDelta:
    """What one round added to a stream.

    Attributes:
        pieces: for each token the text that could be shown once it came: never part of a character, and empty while a
            character or a stop string is undecided.
        token_ids: tokens delivered by the round.
        from_draft: for each of them whether a drafter proposed it.
        output: the whole output, with the last delta only.
    """

    pieces: tuple[str, ...]
    token_ids: tuple[int, ...]
    from_draft: tuple[bool, ...]
    output: RequestOutput | None

    @property
    def text(self) -> str:
        """The text that is new."""
        return "".join(self.pieces)
