"""One batch of conversations, from plans to text: openings, answers, further turns. All through our own engine.

Owns the order of a conversation's making. Knows no files; what earlier shards have is handed in.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from pilotfish.engine.engine import Engine
from pilotfish.engine.request import Request
from pilotfish.models.loading import Model
from pilotfish.sampling.params import SamplingParams
from pilotfish.terms import FinishReason
from pilotfish.train.hidden import Recorder
from pilotfish.train.plans import Plan, derived_seed, starter
from pilotfish.train.prompts import prompt_hash, usable, whole_sentences
from pilotfish.train.settings import DataSettings
from pilotfish.train.shards import FinishedConversation
from pilotfish.train.template import TurnTemplate, without_end

ATTEMPTS = 4
"""Openings invented for one conversation before it is dropped."""
SHORTEST_CONTINUATION = 4
"""Characters that a model adds to a starter at least."""


@dataclass(slots=True)
class BatchResult:
    """The conversations of a batch, in the order of their numbers, and what a manifest counts of them."""

    conversations: list[FinishedConversation] = field(default_factory=list)
    dropped: int = 0
    answers: int = 0
    ended: int = 0


@dataclass(slots=True, eq=False)
class _Growing:
    """A conversation that is being made; `prompt` are the ids to answer next."""

    plan: Plan
    prompt: list[int]
    made: FinishedConversation


class BatchMaker:
    """Makes batches of conversations with one target.

    Args:
        model: the target.
        settings: how.
        on_tokens: told how many answer tokens came, as they come.
    """

    def __init__(self, model: Model, settings: DataSettings, on_tokens: Callable[[int], None]) -> None:
        config = model.executor.config
        self._executor = model.executor
        self._tokenizer = model.tokenizer
        self._settings = settings
        self._on_tokens = on_tokens
        self._max_tokens = min(settings.max_tokens, config.context_length)
        self._template = None if settings.raw else TurnTemplate(model.tokenizer)
        self._recorder = Recorder(settings.boundaries, config.hidden_size) if settings.boundaries else None
        self._plain, self._recorded = (
            Engine(model.executor, model.tokenizer.decode, model.tokenizer.vocab_size, model.eos_ids, drafter=drafter)
            for drafter in (None, self._recorder)
        )
        self._eos_ids = model.eos_ids

    def make(self, plans: Sequence[Plan], seen: set[int]) -> BatchResult:
        """Makes the conversations of some plans.

        Args:
            seen: hashes of all openings so far, the file's and the earlier ones'; those of this batch are added.
        """
        growing = self._open(plans, seen)
        result = BatchResult(dropped=len(plans) - len(growing))
        made = [each.made for each in growing]
        while growing:
            ended = self._answer(growing)
            result.answers += len(growing)
            result.ended += len(ended)
            growing = self._go_on(ended)
        result.conversations = made
        return result

    def _open(self, plans: Sequence[Plan], seen: set[int]) -> list[_Growing]:
        """Finds each plan its opening; those that get none, or one with no room for an answer, are left out."""
        openings = {plan.number: plan.user_turns[0] for plan in plans if plan.user_turns}
        wanting = [plan for plan in plans if not plan.user_turns]
        for attempt in range(ATTEMPTS):
            if not wanting:
                break
            refused = []
            for plan, text in zip(wanting, self._invent_openings(wanting, attempt), strict=True):
                if text is None or prompt_hash(text) in seen:
                    refused.append(plan)
                else:
                    seen.add(prompt_hash(text))
                    openings[plan.number] = text
            wanting = refused
        growing = []
        for plan in plans:
            text = openings.get(plan.number)
            prompt = [] if text is None else self._first_prompt(text)
            if text is not None and prompt and len(prompt) < self._max_tokens:
                made = FinishedConversation(plan.number, prompt_hash(text), plan.temperature, [], [], 0, False)
                growing.append(_Growing(plan, prompt, made))
        return growing

    def _first_prompt(self, text: str) -> list[int]:
        return self._tokenizer.encode(text) if self._template is None else self._template.opening(text)

    def _invent_openings(self, plans: Sequence[Plan], attempt: int) -> Iterator[str | None]:
        assert self._template is not None, "checked by the settings"
        starters = [starter(self._settings, plan.number, attempt) for plan in plans]
        prefixes = [self._template.opening_prefix(words) for words in starters]
        requests = self._invent(plans, prefixes, f"opening {attempt}")
        return (self._turn(words, request) for words, request in zip(starters, requests, strict=True))

    def _invent(self, plans: Sequence[Plan], prefixes: Sequence[list[int]], purpose: str) -> list[Request]:
        own = self._settings
        params = [
            SamplingParams(
                temperature=own.invention_temperature,
                min_p=own.invention_min_p,
                max_tokens=own.max_prompt_tokens,
                seed=derived_seed(own.seed, plan.number, purpose),
            )
            for plan in plans
        ]
        return _run(self._plain, prefixes, params)

    def _turn(self, start: str, request: Request) -> str | None:
        """The user turn that a request invented; `None` if it is not usable."""
        text = (start + self._tokenizer.decode(request.output, skip_special_tokens=False)).strip()
        if request.finish_reason is FinishReason.LENGTH:
            text = whole_sentences(text)
        else:
            end = self._tokenizer.decode(request.output[-1:], skip_special_tokens=False)
            text = text.removesuffix(end).strip()
        if not self._tokenizer.special_ids.isdisjoint(self._tokenizer.encode(text, add_special_tokens=False)):
            return None  # a template inside a turn would end it
        return text if usable(text) and len(text) >= len(start) + SHORTEST_CONTINUATION else None

    def _answer(self, growing: Sequence[_Growing]) -> list[_Growing]:
        """Lets the target answer all; returns those whose answer ended by itself."""
        own = self._settings
        params = [
            SamplingParams(
                temperature=each.plan.temperature,
                max_tokens=min(own.max_answer_tokens, self._max_tokens - len(each.prompt)),
                seed=derived_seed(own.seed, each.plan.number, f"answer {each.made.turns}"),
            )
            for each in growing
        ]
        requests = _run(self._recorded, [each.prompt for each in growing], params, self._on_tokens)
        ended = []
        for each, request in zip(growing, requests, strict=True):
            made = each.made
            made.loss_mask += [False] * (len(each.prompt) - len(made.loss_mask)) + [True] * len(request.output)
            made.tokens = list(request.tokens)
            made.turns += 1
            made.ended = request.finish_reason is FinishReason.STOP
            if self._recorder is not None:
                made.hidden = self._recorder.take(request.key, request.tokens, self._executor)
            if made.ended:
                ended.append(each)
        return ended

    def _go_on(self, ended: Sequence[_Growing]) -> list[_Growing]:
        """Gives those that have turns left their next user turn; the others are finished."""
        going = [each for each in ended if each.made.turns < each.plan.max_turns]
        if not going or self._template is None:
            return []
        texts: dict[int, str | None] = {
            each.plan.number: each.plan.user_turns[each.made.turns]
            for each in going
            if each.made.turns < len(each.plan.user_turns)
        }
        inventing = [
            each
            for each in going
            if each.plan.number not in texts
            and len(each.made.tokens) + len(self._template.next_prefix()) + self._settings.max_prompt_tokens
            < self._max_tokens
        ]
        if inventing:
            prefixes = [[*self._history(each), *self._template.next_prefix()] for each in inventing]
            turn = inventing[0].made.turns  # all of a batch are at the same turn
            requests = self._invent([each.plan for each in inventing], prefixes, f"turn {turn}")
            for each, request in zip(inventing, requests, strict=True):
                texts[each.plan.number] = self._turn("", request)
        growing = []
        for each in going:
            text = texts.get(each.plan.number)
            if text is None:
                continue
            history = self._history(each)
            each.prompt = [*history, *self._template.next_turn(text)]
            if len(each.prompt) >= self._max_tokens:
                continue
            # The answer's end is the template's own where both write the same token, and no answer's where not.
            length = len(each.made.tokens)
            kept = length if each.prompt[:length] == each.made.tokens else len(history)
            each.made.loss_mask = each.made.loss_mask[:kept]
            growing.append(each)
        return growing

    def _history(self, each: _Growing) -> list[int]:
        return without_end(each.made.tokens, self._eos_ids)


def _run(
    engine: Engine,
    prompts: Sequence[list[int]],
    params: Sequence[SamplingParams],
    on_tokens: Callable[[int], None] = lambda count: None,
) -> list[Request]:
    """All requests of one batch, ended, in the order of the prompts."""
    requests: dict[int, Request] = {}
    for delivered in engine.run(prompts, params):
        on_tokens(len(delivered))
        requests.update((request.key, request) for request in delivered)
    return [requests[key] for key in sorted(requests)]
