"""The engine: prompts and options become requests, and a scheduler runs them.

Owns what is checked before a request starts, and a batch's way through the scheduler. Knows token ids only; prompts as
text and models by name belong to `llm.py`, requests from other threads to `service.py`.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from queue import Empty, SimpleQueue

from pilotfish.drafters.base import Drafter
from pilotfish.engine.detokenizer import Detokenizer
from pilotfish.engine.ending import Ending
from pilotfish.engine.request import NOWHERE, Request
from pilotfish.engine.scheduler import Scheduler
from pilotfish.errors import PromptError, SamplingParamsError, SpeculativeConfigError
from pilotfish.metrics.counters import RequestTiming, SpeculationCounters
from pilotfish.models.base import Executor
from pilotfish.sampling.grammar import Grammar, GrammarCompiler, GrammarEnd
from pilotfish.sampling.params import SamplingParams, fresh_seed
from pilotfish.sampling.sampler import Sampler
from pilotfish.sampling.structured import StructuredOutputs
from pilotfish.verify import RULES

SERVED_WAIT = 0.05
"""Seconds after which a batch that waits for a service's thread looks whether there still is one."""


class Engine:
    """Runs batches of token-id prompts on a target, with or without a drafter.

    Args:
        target: the model whose output is produced.
        decode: token ids to text, special tokens left out.
        vocab_size: ids the tokenizer knows; nothing at or above it is ever drafted or emitted.
        eos_ids: the model's end-of-sequence ids.
        decode_all: token ids to text, special tokens written out; for `skip_special_tokens=False`.
        encode: text to token ids, nothing added around it; for `bad_words`.
        grammars: compiles `structured_outputs`.
        drafter: proposes tokens; `None` is plain decoding.
        draft_len: tokens drafted per round unless a request says otherwise.
        verification: the rule, a key of `pilotfish.verify.RULES`.
        max_model_len: most tokens of a request, prompt and output; the model's context by default.
    """

    def __init__(
        self,
        target: Executor,
        decode: Callable[[Sequence[int]], str],
        vocab_size: int,
        eos_ids: Sequence[int] = (),
        *,
        decode_all: Callable[[Sequence[int]], str] | None = None,
        encode: Callable[[str], list[int]] | None = None,
        grammars: GrammarCompiler | None = None,
        drafter: Drafter | None = None,
        draft_len: int = 0,
        verification: str = "match",
        max_model_len: int | None = None,
    ) -> None:
        self._target = target
        self._decode = decode
        self._decode_all = decode_all
        self._encode = encode
        self._grammars = grammars
        self._vocab_size = min(vocab_size, target.config.vocab_size)
        self._eos_ids = tuple(eos_ids)
        self._context = min(max_model_len or target.config.context_length, target.config.context_length)
        self._drafter = drafter
        self._draft_len = draft_len if drafter is not None else 0
        self.scheduler = Scheduler(target, drafter, RULES[verification])
        self.is_served = False
        """Whether a service's thread runs the rounds; `run` then waits for it."""
        self._keys = count()

    @property
    def target(self) -> Executor:
        """The model whose output is produced."""
        return self._target

    @property
    def totals(self) -> SpeculationCounters:
        """Counts of all requests that are over."""
        return self.scheduler.totals

    @property
    def drafter(self) -> Drafter | None:
        """What proposes tokens; `None` where decoding is plain."""
        return self._drafter

    def prepare(self, prompt: Sequence[int], params: SamplingParams, draft_len: int | None = None) -> SamplingParams:
        """Checks a request without starting it; returns its params with the seed filled in.

        Raises:
            PromptError: the prompt is empty, longer than the context, or names an id outside the vocabulary.
            SamplingParamsError: a token id in an option is outside the vocabulary, a grammar allows nothing, or an
                option needs what this engine or model has not.
            SpeculativeConfigError: `draft_len` is negative.
            CacheFullError: the cache has no room for it even alone.
        """
        if not prompt:
            raise PromptError(
                "the prompt has no tokens: expected at least one (this model has no BOS token to start from)"
            )
        if len(prompt) >= self._context:
            whose = "the model's context" if self._context == self._target.config.context_length else "max_model_len"
            raise PromptError(
                f"the prompt has {len(prompt)} tokens: expected fewer than {whose} of {self._context}; shorten it"
            )
        for place, token in enumerate(prompt):
            if not 0 <= token < self._vocab_size:
                raise PromptError(f"prompt token {place} is {token}: expected an id from 0 to {self._vocab_size - 1}")
        self._check_options(params)
        if draft_len is not None and draft_len < 0:
            raise SpeculativeConfigError(f"num_speculative_tokens={draft_len}: expected at least 0")
        self.scheduler.places.require_fit(len(prompt) + self._budget(prompt, params))
        return params if params.seed is not None else params.with_seed(fresh_seed())

    def _budget(self, prompt: Sequence[int], params: SamplingParams) -> int:
        """Tokens that may be delivered."""
        room = self._context - len(prompt)
        return room if params.max_tokens is None else min(params.max_tokens, room)

    def _check_options(self, params: SamplingParams) -> None:
        """Refuses what only a vocabulary, a tokenizer or a grammar can tell to be wrong."""
        highest = self._vocab_size - 1
        for option in ("stop_token_ids", "allowed_token_ids", "banned_token_ids", "logit_bias"):
            for token in getattr(params, option) or ():
                if token > highest:
                    raise SamplingParamsError(f"{option} has {token}: expected ids from 0 to {highest}")
        for option in ("logprobs", "prompt_logprobs"):
            count = getattr(params, option)
            if count is not None and count > self._vocab_size:
                raise SamplingParamsError(f"{option} is {count}; expected at most the vocabulary, {self._vocab_size}")
        if params.sample_count > 1:
            raise SamplingParamsError(
                f"n is {params.sample_count}: an engine's request is one sample; give it each of params.samples()"
            )
        if not params.skip_special_tokens and self._decode_all is None:
            raise SamplingParamsError("skip_special_tokens is False: this engine cannot write special tokens out")
        ends = (*self._eos_ids, *params.stop_token_ids)
        dead_ends = ("bad_words", "no_repeat_ngram_size", "logits_processors")
        for option in (name for name in dead_ends if getattr(params, name) and not ends):
            raise SamplingParamsError(
                f"{option} may leave no token possible, and this model has no end-of-sequence id to end with: "
                "give stop_token_ids"
            )
        self._bad_words(params)
        self._grammar(params)

    def _bad_words(self, params: SamplingParams) -> list[list[int]]:
        """The token sequences of the words as they are and with a space before them."""
        if not params.bad_words:
            return []
        if self._encode is None:
            raise SamplingParamsError("bad_words are texts, and this engine has no tokenizer to encode them with")
        sequences: dict[tuple[int, ...], None] = {}  # in order, each once
        for word in params.bad_words:
            written = [self._encode(start + word.lstrip()) for start in ("", " ")]
            if not all(written):
                raise SamplingParamsError(f"bad_words has {word!r}: expected text that has tokens")
            sequences.update((tuple(tokens), None) for tokens in written)
        return list(map(list, sequences))

    def _grammar(self, params: SamplingParams) -> Grammar | None:
        form = params.structured_outputs
        if form is None:
            return None
        if self._grammars is None:
            raise SamplingParamsError("structured_outputs needs a tokenizer, and this engine has none")
        assert isinstance(form, StructuredOutputs), "normalised by SamplingParams"
        return self._grammars.compile(form)

    def run(
        self, prompts: Sequence[Sequence[int]], params: Sequence[SamplingParams], draft_len: int | None = None
    ) -> Iterator[list[Request]]:
        """Starts all requests, then yields after each round those that were delivered tokens.

        Where the caches have no room for all of them at a time, some wait. The caches are given back as requests end,
        and also when the caller stops early.

        Args:
            prompts: token ids, one list per request.
            params: one per request.
            draft_len: tokens to draft per round for these requests, at most; the engine's own by default.

        Raises:
            PromptError, SamplingParamsError, SpeculativeConfigError: as `prepare`, before anything is started.
            CacheFullError: the caches have no room for one of them even alone.
        """
        checked = [self.prepare(prompt, own, draft_len) for prompt, own in zip(prompts, params, strict=True)]
        requests = [self.request(prompt, own, draft_len) for prompt, own in zip(prompts, checked, strict=True)]
        changed: SimpleQueue[Request] = SimpleQueue()
        left = len(requests)
        try:
            for request in requests:
                self.scheduler.add(request, changed.put)
            while left:
                delivered = self._next(changed)
                failed = next((request.error for request in delivered if request.error is not None), None)
                if failed is not None:
                    raise failed
                left -= sum(request.is_over for request in delivered)
                if delivered:
                    yield delivered
        finally:
            self.scheduler.drop(requests)

    def _next(self, changed: "SimpleQueue[Request]") -> list[Request]:
        """The requests that a round has changed, each once; runs that round where nobody else does."""
        found: dict[int, Request] = {}
        if changed.empty() and not self.is_served:
            self.scheduler.step()
        try:
            while True:
                request = changed.get(timeout=SERVED_WAIT if self.is_served and not found else 0)
                found[request.key] = request
        except Empty:
            return list(found.values())

    def request(
        self,
        prompt: Sequence[int],
        params: SamplingParams,
        draft_len: int | None = None,
        deadline: float | None = None,
    ) -> Request:
        """A request for the scheduler, of what `prepare` has checked and completed.

        Args:
            deadline: when it ends whatever it has, by `time.monotonic`.
        """
        own_draft_len = self._draft_len if draft_len is None else min(draft_len, self._draft_len)
        grammar = self._grammar(params)
        decode = self._decode if params.skip_special_tokens or self._decode_all is None else self._decode_all
        sampler = Sampler(
            params, self._vocab_size, eos_ids=self._eos_ids, bad_words=self._bad_words(params), grammar=grammar
        )
        ends = GrammarEnd(grammar) if grammar is not None else None
        return Request(
            key=next(self._keys),
            tokens=list(prompt),
            prompt_length=len(prompt),
            sampler=sampler,
            ending=Ending(params, self._eos_ids, self._budget(prompt, params), Detokenizer(decode, prompt), ends),
            draft_len=own_draft_len,
            sequence=NOWHERE,
            timing=RequestTiming(time.monotonic()),
            deadline=deadline,
        )
