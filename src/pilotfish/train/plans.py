"""What conversation number i is to be, before any text exists: its seeds, temperature, length and opening.

Owns all randomness of data generation: everything is drawn from (run seed, conversation number, purpose), so that a
conversation does not depend on when, where or in which run it is made.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from pilotfish.train.settings import DataSettings
from pilotfish.train.starters import STARTERS


@dataclass(frozen=True, slots=True)
class Plan:
    """One conversation's plan.

    Attributes:
        number: in the whole data set.
        user_turns: the user's, from a file; empty if the target invents them.
        max_turns: answers it may have.
        temperature: of its answers.
    """

    number: int
    user_turns: tuple[str, ...]
    max_turns: int
    temperature: float


def derived_seed(seed: int, number: int, purpose: str) -> int:
    """53 bits for one purpose in one conversation."""
    digest = hashlib.sha256(f"{seed}/{number}/{purpose}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 11


def make_plan(settings: DataSettings, prompts: Sequence[tuple[str, ...]], number: int) -> Plan | None:
    """The plan of conversation `number`; `None` if prompts are used up and none are to be invented."""
    draws = Random(derived_seed(settings.seed, number, "plan"))
    from_file = number < len(prompts) * settings.passes
    if not from_file and not settings.invent:
        return None
    again = from_file and number >= len(prompts)
    choices = [(temperature, share) for temperature, share in settings.temperatures if temperature > 0 or not again]
    (temperature,) = draws.choices([each for each, _ in choices], [share for _, share in choices])
    turns = prompts[number % len(prompts)] if from_file else ()
    max_turns = max(1, len(turns))
    while max_turns < settings.max_turns and draws.random() < settings.follow_ups:
        max_turns += 1
    return Plan(number, turns, min(max_turns, settings.max_turns), temperature)


def starter(settings: DataSettings, number: int, attempt: int) -> str:
    """First words of an invented opening; empty for the share that begins freely."""
    draws = Random(derived_seed(settings.seed, number, f"starter {attempt}"))
    return draws.choice(STARTERS) if draws.random() < settings.starters else ""
