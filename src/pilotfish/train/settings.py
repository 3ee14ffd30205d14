"""What decides a data set besides the model: `DataSettings`. Owns fields, ranges, defaults and their checksum.

How much text to make is no part of it, so that a set can grow.
"""

import hashlib
import json
from dataclasses import asdict, dataclass, fields
from typing import Any

from pilotfish.errors import InvalidInputError


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSettings:
    """How conversations are made. Conversation i is a function of the model, these settings and i.

    Attributes:
        seed: from which all seeds of all conversations come.
        prompts: sha256 of the user's prompts, `None` if there are none.
        passes: times each of the user's prompts is answered; after the first at temperatures above 0 only, since at 0
            the answer would be the same again.
        invent: whether the target invents opening prompts once the user's are used up.
        raw: prompts are continued as they are, without chat template and without further turns.
        temperatures: pairs of a temperature and its share of the conversations. Half at 0 by default, since drafters
            are mostly wanted there and a drafter sees there exactly the text it will draft; the rest at 0.7 and 1,
            since greedy answers of a small model are much alike, and other paths teach what they share.
        follow_ups: the probability that an answer is followed by a further user turn, invented by the target.
        max_turns: answers of a conversation at most.
        max_prompt_tokens: of an invented user turn.
        max_answer_tokens: of an answer.
        max_tokens: of a conversation, template included.
        invention_temperature, invention_min_p: at which user turns are invented. At 1 the target's own law gives the
            widest choice; `min_p` cuts off the tail, where a small model strays into noise.
        starters: the share of invented openings that begin with words of ours (`starters.py`), which spread them over
            kinds of tasks.
        batch: conversations that are generated together, and lie in one shard.
        held_out_share: of the prompts.
        boundaries: layer boundaries whose states are stored; empty for none.
    """

    seed: int = 0
    prompts: str | None = None
    passes: int = 1
    invent: bool = True
    raw: bool = False
    temperatures: tuple[tuple[float, float], ...] = ((0.0, 0.5), (0.7, 0.25), (1.0, 0.25))
    follow_ups: float = 0.2
    max_turns: int = 3
    max_prompt_tokens: int = 160
    max_answer_tokens: int = 256
    max_tokens: int = 1024
    invention_temperature: float = 1.0
    invention_min_p: float = 0.02
    starters: float = 0.5
    batch: int = 64
    held_out_share: float = 0.02
    boundaries: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for name in ("passes", "max_turns", "max_prompt_tokens", "max_answer_tokens", "max_tokens", "batch"):
            self._require(name, getattr(self, name) >= 1, "at least 1")
        self._require("seed", self.seed >= 0, "at least 0")
        for name in ("follow_ups", "starters", "held_out_share", "invention_min_p"):
            self._require(name, 0 <= getattr(self, name) <= 1, "a number from 0 to 1")
        self._require("invention_temperature", self.invention_temperature > 0, "a number above 0")
        self._require("temperatures", len(self.temperatures) > 0, "at least one temperature with its share")
        for temperature, share in self.temperatures:
            self._require("temperatures", temperature >= 0 and share > 0, "temperatures of at least 0, shares above 0")
        self._require(
            "boundaries",
            list(self.boundaries) == sorted(set(self.boundaries)) and min(self.boundaries, default=0) >= 0,
            "increasing numbers of at least 0",
        )
        if self.prompts is None and not self.invent:
            raise InvalidInputError("no prompts: give a file of prompts, or let the target invent them")
        if self.raw and self.invent:
            raise InvalidInputError("raw continues prompts as they are: without a chat template none can be invented")
        if self.raw and self.max_turns > 1:
            raise InvalidInputError(f"raw has no turns: got max_turns={self.max_turns}, expected 1")
        if self.raw and self.follow_ups > 0:
            raise InvalidInputError(f"raw has no turns: got follow_ups={self.follow_ups}, expected 0")
        if self.passes > 1 and not any(temperature > 0 for temperature, _ in self.temperatures):
            raise InvalidInputError(
                f"passes={self.passes} at temperature 0 alone would give the same answers again: expected 1, or a "
                "temperature above 0"
            )

    def _require(self, name: str, holds: bool, expected: str) -> None:
        if not holds:
            raise InvalidInputError(f"{name}={getattr(self, name)!r}: expected {expected}")

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "DataSettings":
        """From JSON.

        Raises:
            InvalidInputError: a value is out of range.
            TypeError: a field is unknown.
        """
        pairs = tuple((float(temperature), float(share)) for temperature, share in values["temperatures"])
        own: dict[str, Any] = {**values, "temperatures": pairs, "boundaries": tuple(values["boundaries"])}
        return cls(**own)

    @property
    def checksum(self) -> str:
        """Equal for equal settings."""
        return hashlib.sha256(json.dumps(self.as_dict(), sort_keys=True).encode()).hexdigest()

    def difference(self, other: "DataSettings") -> str | None:
        """The first field in which another differs, in words; `None` if none does."""
        for field in fields(self):
            ours, theirs = getattr(self, field.name), getattr(other, field.name)
            if ours != theirs:
                return f"{field.name} is {ours!r} there and {theirs!r} here"
        return None
