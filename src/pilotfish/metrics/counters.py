"""Counters of a request or of a whole run, and the figures derived from them.

Owns each figure's formula; DESIGN's glossary fixes the words. Every count is of *delivered* tokens: what a stop
condition cut away was never accepted, and padding was never drafted. Knows nothing of requests or of clocks.
"""

from dataclasses import dataclass, field


@dataclass(slots=True)
class SpeculationCounters:
    """What rounds did.

    Attributes:
        rounds: propose-verify-commit cycles, one target forward each; prompt-only passes are not rounds.
        drafted_tokens: tokens proposed.
        accepted_tokens: drafted tokens that were delivered.
        delivered_tokens: all tokens delivered, the target's own included.
        accepted_per_position: delivered drafted tokens by their depth in the draft, from 0.
    """

    rounds: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    delivered_tokens: int = 0
    accepted_per_position: list[int] = field(default_factory=list)

    def record(self, *, drafted: int, accepted: int, delivered: int) -> None:
        """Counts one round in which `accepted` drafted tokens, a path from the root, were delivered."""
        assert 0 <= accepted <= delivered <= accepted + 1, "a round delivers its accepted tokens and at most one more"
        self.rounds += 1
        self.drafted_tokens += drafted
        self.accepted_tokens += accepted
        self.delivered_tokens += delivered
        missing = accepted - len(self.accepted_per_position)
        self.accepted_per_position.extend([0] * missing)
        for position in range(accepted):
            self.accepted_per_position[position] += 1

    def add(self, other: "SpeculationCounters") -> None:
        """Adds another's counts to these."""
        self.rounds += other.rounds
        self.drafted_tokens += other.drafted_tokens
        self.accepted_tokens += other.accepted_tokens
        self.delivered_tokens += other.delivered_tokens
        missing = len(other.accepted_per_position) - len(self.accepted_per_position)
        self.accepted_per_position.extend([0] * missing)
        for position, count in enumerate(other.accepted_per_position):
            self.accepted_per_position[position] += count

    @property
    def acceptance_rate(self) -> float:
        """accepted / drafted, unconditional; 0 when nothing was drafted."""
        return self.accepted_tokens / self.drafted_tokens if self.drafted_tokens else 0.0

    @property
    def tokens_per_round(self) -> float:
        """delivered / rounds, the target's own token included ("mean acceptance length"); 0 before the first round."""
        return self.delivered_tokens / self.rounds if self.rounds else 0.0


@dataclass(slots=True)
class RequestTiming:
    """Clock readings of one request, in seconds of one monotonic clock.

    Attributes:
        started: the request was accepted by the engine.
        first_tokens: its first tokens were delivered.
        first_count: how many tokens came at that moment.
        ended: its last token was delivered.
    """

    started: float
    first_tokens: float | None = None
    first_count: int = 0
    ended: float | None = None

    def record(self, now: float, delivered: int) -> None:
        """Notes that `delivered` tokens were delivered now."""
        if self.first_tokens is None:
            self.first_tokens = now
            self.first_count = delivered
        self.ended = now

    @property
    def time_to_first_token(self) -> float | None:
        """Seconds from acceptance to the first delivered token."""
        return None if self.first_tokens is None else self.first_tokens - self.started

    def decode_tokens_per_second(self, delivered: int) -> float | None:
        """Tokens after the first delivery / seconds after it; `None` when there were no more."""
        if self.first_tokens is None or self.ended is None or self.ended <= self.first_tokens:
            return None
        return (delivered - self.first_count) / (self.ended - self.first_tokens)
