"""The plan of the law level: which rules, drafters, options and draft lengths meet in which toy world, and how often.

Owns the list. Knows no model and no statistics.
"""

from dataclasses import dataclass
from itertools import cycle

from pilotfish.audit.options import BY_NAME, GREEDY, HOT, PAIRS, PLAIN, SINGLES, Setting
from pilotfish.audit.worlds import MODEL_FREE, OF_THE_MODEL

CHAINS_WITHOUT_MODEL = ("ngram", "suffix", "recycle", "lookup")
DRAFTERS = {
    "match": (*MODEL_FREE, "tree", "draft_model", "policy"),
    "rejection": (*CHAINS_WITHOUT_MODEL, "draft_model", "policy"),
    "block": (*CHAINS_WITHOUT_MODEL, "draft_model", "policy"),
    "traversal": (*MODEL_FREE, "tree", "tree with replacement", "draft_model", "policy"),
}
CORE = (("match", "draft_model"), ("rejection", "draft_model"), ("block", "draft_model"), ("traversal", "tree"))
MODEL_OPTIONS = ("no option", "temperature 0", "temperature 1.6", "top_k 3", "presence_penalty 1.5", "top_p 0.8")
"""What an option does to a law has nothing to do with a drafter, so those of a real model meet a few of them only."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One toy world and how many tokens to draw in it.

    Attributes:
        drafter: a name in `DRAFTERS`, one of `worlds.OF_THE_MODEL`, or chain (stateless).
        option: a name of `options.BY_NAME`.
        replays: rounds to live through again.
        core: looked at with enough tokens to see small effects by itself.
        tables: different pairs of toy models to spread the tokens over.
    """

    rule: str
    drafter: str
    option: str
    draft_len: int
    vocab_size: int
    order: int
    tokens: int
    replays: int = 16
    core: bool = False
    tables: int = 1

    @property
    def setting(self) -> Setting:
        return BY_NAME[self.option]

    @property
    def name(self) -> str:
        return f"{self.rule}, {self.drafter}, {self.option}, k={self.draft_len}, vocabulary {self.vocab_size}"

    @property
    def groups(self) -> tuple[str, ...]:
        """What this plan has in common with others."""
        options = (f"option {option}" for option in self.option.split(" + "))
        return ("all plans", f"rule {self.rule}", f"drafter {self.drafter}", f"k={self.draft_len}", *options)


@dataclass(frozen=True, slots=True)
class LawSize:
    """Tokens and replayed rounds of a core plan and of each plan of the grid; whether option pairs meet every rule."""

    core_tokens: int
    core_replays: int
    grid_tokens: int
    grid_replays: int
    pairs_under_every_rule: bool


SIZES = {
    "ci": LawSize(4_000, 500, 36, 20, False),
    "standard": LawSize(400_000, 4_000, 200, 32, True),
    "full": LawSize(1_000_000, 20_000, 10_000, 500, True),
}


def make_plans(size: LawSize) -> list[Plan]:
    """Core plans, then the grid: rules x drafters x options, and option pairs; lengths and vocabularies in turn."""
    plans = [
        Plan(rule, drafter, PLAIN.name, 2, 5, 1, size.core_tokens, size.core_replays, core=True, tables=4)
        for rule, drafter in CORE
    ]
    lengths, worlds = cycle((1, 2, 3, 4, 2)), cycle(((5, 1), (5, 2), (8, 1), (50, 1)))

    def add(rule: str, drafter: str, setting: Setting) -> None:
        if drafter in OF_THE_MODEL:
            vocab_size, order = 16, 0
        else:
            vocab_size, order = (8, 1) if setting.looks_back else next(worlds)
        plans.append(
            Plan(rule, drafter, setting.name, next(lengths), vocab_size, order, size.grid_tokens, size.grid_replays)
        )

    for rule, drafters in DRAFTERS.items():
        for drafter in drafters:
            for setting in (PLAIN, GREEDY, HOT, *SINGLES):
                add(rule, drafter, setting)
        for drafter in OF_THE_MODEL if rule == "match" else OF_THE_MODEL[:2]:
            for option in MODEL_OPTIONS:
                add(rule, drafter, BY_NAME[option])
    turns = {rule: cycle(drafters) for rule, drafters in DRAFTERS.items()}
    rules = cycle(DRAFTERS)
    for pair in PAIRS:
        for rule in DRAFTERS if size.pairs_under_every_rule else (next(rules),):
            add(rule, next(turns[rule]), pair)
    return plans
