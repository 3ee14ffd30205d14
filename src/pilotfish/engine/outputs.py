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
class Logprob:
    """What a law says of one token.

    Attributes:
        logprob: natural logarithm of its probability.
        rank: 1 for the most probable token; of equally probable ones the lowest id comes first.
        decoded_token: its text by itself.
    """

    logprob: float
    rank: int
    decoded_token: str


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
        stop_reason: the stop string or the token that ended it; `None` where it ended otherwise.
        logprobs: for each delivered token, by id, it and the most probable tokens, as asked for by
            `SamplingParams.logprobs` and `logprobs_mode`; `None` if it was not.
        cumulative_logprob: the sum over the delivered tokens, if logprobs were asked for or `best_of` needed them.
    """

    index: int
    text: str
    token_ids: tuple[int, ...]
    from_draft: tuple[bool, ...]
    finish_reason: FinishReason
    seed: int
    metrics: RequestMetrics
    stop_reason: str | int | None = None
    logprobs: tuple[dict[int, Logprob], ...] | None = None
    cumulative_logprob: float | None = None


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """A prompt and what came of it.

    Attributes:
        outputs: its samples; with `best_of`, the best first.
        prompt_logprobs: for each prompt token, by id, it and the most probable tokens by the model's own law; `None`
            for the first, which nothing comes before. `None` if not asked for.
    """

    prompt: str | None
    prompt_token_ids: tuple[int, ...]
    outputs: tuple[CompletionOutput, ...]
    prompt_logprobs: tuple[dict[int, Logprob] | None, ...] | None = None


@dataclass(frozen=True, slots=True)
class StreamDelta:
    """What one round added to a stream.

    Attributes:
        pieces: for each token the text that could be shown once it came: never part of a character, and empty while a
            character or a stop string is undecided.
        token_ids: tokens delivered by the round.
        from_draft: for each of them whether a drafter proposed it.
        output: the whole output, with the last delta only.
        logprobs: for each token, by id, it and the most probable tokens; `None` if not asked for.
        error: what made the request fail; such a delta is its last, and has no output.
    """

    pieces: tuple[str, ...]
    token_ids: tuple[int, ...]
    from_draft: tuple[bool, ...]
    output: RequestOutput | None
    logprobs: tuple[dict[int, Logprob], ...] | None = None
    error: Exception | None = None

    @property
    def text(self) -> str:
        """The text that is new."""
        return "".join(self.pieces)
