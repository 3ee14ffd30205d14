"""`LLM`: a model by name, prompts as text or messages, results as text. The front door for Python.

Owns the translation between callers and the engine: names to models, text to ids, requests to records.
"""

from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

from pilotfish.engine.config import AUTO, SpeculativeConfig
from pilotfish.engine.engine import Engine
from pilotfish.engine.memory_plan import apply_plan, parse_bytes, plan_memory
from pilotfish.engine.outputs import RequestOutput, StreamDelta
from pilotfish.engine.report import request_output, stream_delta
from pilotfish.engine.request import Request
from pilotfish.engine.speculation import build_speculation
from pilotfish.errors import InvalidInputError, PromptError, SamplingParamsError
from pilotfish.metrics.counters import SpeculationCounters
from pilotfish.models.base import PagedExecutor
from pilotfish.models.loading import ExecutorChoice, Model, load_model
from pilotfish.models.weights import WeightType
from pilotfish.sampling.grammar import GrammarCompiler
from pilotfish.sampling.params import SamplingParams, fresh_seed

Prompt: TypeAlias = str | Sequence[int]
"""Text, or token ids as the model is to read them."""

Message: TypeAlias = Mapping[str, Any]
"""`{"role": ..., "content": ...}`"""


class LLM:
    """A target model and its drafters.

    The output of a request is a function of weights, prompt, sampling parameters and seed. The drafter, its draft
    length and the rest of the batch change only how fast it comes.

    Args:
        model: a Hugging Face directory, a GGUF file, a catalogue name or a hub id.
        speculative_config: a `SpeculativeConfig`, a dictionary of its fields, "auto" for what needs no training and
            what comes with the package, with a length decided in each round, or `None` for plain decoding.
        executor: "native", "torch", or "auto" for native where it works.
        weights: how the native executor stores matrices; "auto" keeps bfloat16, float32 and the quantised types that
            have an exact int8 form, and rounds float16 and other quantised types to bfloat16.
        threads: of the native executor; by default one per physical core this process may use.
        device: of the PyTorch executor.
        recalibrate: measure again what a pass takes on this machine, instead of what was remembered.
        kv_cache_memory: bytes, or text such as "2GiB", that the key-value cache may take, drafters' included; by
            default half of what is free, but no more than eight of the longest requests need.
        max_model_len: most tokens of a request, prompt and output; the model's context by default.

    Raises:
        SpeculativeConfigError: an unknown key or a value out of range.
        ModelError: a model cannot be found, read or used; names what is wrong.
        TokenizerMismatchError: target and draft model do not share a tokenizer.
        CacheFullError: the memory is too little for one request of `max_model_len`; says what it needs.
        InvalidInputError: `kv_cache_memory` or `max_model_len` is out of range.
    """

    def __init__(
        self,
        model: str | Path,
        *,
        speculative_config: SpeculativeConfig | Mapping[str, Any] | str | None = AUTO,
        executor: ExecutorChoice = "auto",
        weights: WeightType = "auto",
        threads: int | None = None,
        device: str = "cpu",
        recalibrate: bool = False,
        kv_cache_memory: int | str | None = None,
        max_model_len: int | None = None,
    ) -> None:
        if max_model_len is not None and max_model_len < 2:
            raise InvalidInputError(f"max_model_len={max_model_len}: expected at least 2")
        self._kv_cache_memory = None if kv_cache_memory is None else parse_bytes(kv_cache_memory, "kv_cache_memory")
        self._device = device
        config = SpeculativeConfig.parse(speculative_config)  # first: a mistake in it need not wait for the model

        @cache
        def load(name: str | Path) -> Model:
            return load_model(name, executor=executor, weights=weights, threads=threads, device=device)

        self._load = load
        self._recalibrate = recalibrate
        self._model = load(model)
        context = self._model.executor.config.context_length
        if max_model_len is not None and max_model_len > context:
            raise InvalidInputError(f"max_model_len={max_model_len}: expected at most the model's context, {context}")
        self.max_model_len = max_model_len or context
        """Most tokens of a request, prompt and output."""
        self.tokenizer = self._model.tokenizer
        self._grammars = GrammarCompiler(self.tokenizer.to_json, self.tokenizer.vocab_size, self._model.eos_ids)
        self._speculate(config)

    def with_speculation(self, speculative_config: SpeculativeConfig | Mapping[str, Any] | str | None) -> "LLM":
        """Another `LLM` over the same loaded models, with an engine and a drafter of its own.

        Nothing that this one's drafter has learned is known to the other, so that two can be compared. The models'
        caches are shared, so only one of the two may be generating at a time, here as later.

        Raises:
            SpeculativeConfigError, ModelError, TokenizerMismatchError: as for a new `LLM`.
        """
        other = copy(self)
        other._recalibrate = False  # done for this one, where it was asked for; the machine is still the same
        other._speculate(SpeculativeConfig.parse(speculative_config))
        return other

    def _speculate(self, config: SpeculativeConfig | None) -> None:
        self.speculative_config = config
        target = self._model.executor
        assert isinstance(target, PagedExecutor), "every executor that a model is loaded into"
        target.prefix_cache.clear()  # room for a calibration
        drafter, draft_len = build_speculation(config, self._model, self._load, recalibrate=self._recalibrate)
        self.memory_plan = plan_memory(
            target,
            drafter,
            draft_len,
            kv_cache_memory=self._kv_cache_memory,
            max_model_len=self.max_model_len,
            device=self._device,
        )
        apply_plan(self.memory_plan, target, drafter)
        self.engine = Engine(
            target,
            self.tokenizer.decode,
            self.tokenizer.vocab_size,
            self._model.eos_ids,
            decode_all=self.decode_all,
            encode=lambda text: self.tokenizer.encode(text, add_special_tokens=False),
            grammars=self._grammars,
            drafter=drafter,
            draft_len=draft_len,
            verification=config.verification if config is not None else "match",
            max_model_len=self.max_model_len,
        )

    @property
    def totals(self) -> SpeculationCounters:
        """Counts over all requests so far."""
        return self.engine.totals

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        num_speculative_tokens: int | None = None,
    ) -> list[RequestOutput]:
        """Continues one prompt or a batch of prompts.

        Args:
            prompts: text or token ids, one or several.
            sampling_params: for all prompts, or one for each. With `n` or `best_of` a prompt has several samples, each
                a request of its own in the batch.
            num_speculative_tokens: most tokens to draft per round for these requests, within what this `LLM` drafts; 0
                decodes plainly.

        Raises:
            PromptError, SamplingParamsError: before anything is generated.
        """
        batch = _as_batch(prompts)
        requests: dict[int, Request] = {}
        ids = [self._encode(prompt) for prompt in batch]
        params = _as_params(sampling_params, len(batch))
        samples = [_seeded(own).samples() for own in params]
        each = [prompt for prompt, own in zip(ids, samples, strict=True) for _ in own]
        for delivered in self.engine.run(each, [own for group in samples for own in group], num_speculative_tokens):
            requests.update((request.key, request) for request in delivered)
        ended = (requests[key] for key in sorted(requests))
        return [
            request_output(_text(prompt), [next(ended) for _ in group], own, self.decode_all)
            for prompt, group, own in zip(batch, samples, params, strict=True)
        ]

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        num_speculative_tokens: int | None = None,
    ) -> list[RequestOutput]:
        """Answers one conversation or a batch of conversations, written out by the model's chat template.

        Raises:
            PromptError: a message is not of the form `{"role": ..., "content": ...}`.
            InvalidInputError: the model has no chat template.
        """
        conversations = [messages] if messages and isinstance(messages[0], Mapping) else list(messages)
        if not conversations:
            raise PromptError("no messages: expected at least one {'role': ..., 'content': ...}")
        prompts = [self.tokenizer.chat(conversation) for conversation in conversations]  # type: ignore[arg-type]
        return self.generate(prompts, sampling_params, num_speculative_tokens=num_speculative_tokens)

    def stream(
        self,
        prompt: Prompt | Sequence[Message],
        sampling_params: SamplingParams | None = None,
        *,
        num_speculative_tokens: int | None = None,
    ) -> Iterator[StreamDelta]:
        """Continues one prompt, or answers one conversation, round by round.

        Deltas join to the output's text. What might become a stop string is held back until that is decided.
        Closing the iterator ends the request.
        """
        ids = self.tokenizer.chat(prompt) if _is_conversation(prompt) else self._encode(prompt)  # type: ignore[arg-type]
        (params,) = _as_params(sampling_params, 1)
        if params.sample_count > 1:
            raise SamplingParamsError(f"n is {params.sample_count}; expected 1 in a stream: use generate for samples")
        shown = 0
        for (request,) in self.engine.run([ids], params.samples(), num_speculative_tokens):
            yield stream_delta(_text(prompt), request, shown, params, self.decode_all)
            shown = len(request.output)

    def decode_all(self, ids: Sequence[int]) -> str:
        """Token ids as text, special tokens written out."""
        return self.tokenizer.decode(ids, skip_special_tokens=False)

    def _encode(self, prompt: Prompt) -> list[int]:
        if not isinstance(prompt, str):
            return list(prompt)
        ids = self.tokenizer.encode(prompt)
        if not ids and self.tokenizer.bos_id is not None:
            return [self.tokenizer.bos_id]
        return ids


def _is_conversation(prompt: Prompt | Sequence[Message]) -> bool:
    return not isinstance(prompt, str) and len(prompt) > 0 and isinstance(prompt[0], Mapping)


def _text(prompt: Any) -> str | None:
    return prompt if isinstance(prompt, str) else None


def _seeded(params: SamplingParams) -> SamplingParams:
    """Several samples share one seed to derive theirs from."""
    return params if params.seed is not None or params.sample_count == 1 else params.with_seed(fresh_seed())


def _as_batch(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    if isinstance(prompts, str):
        return [prompts]
    given: Any = prompts
    if not isinstance(given, Sequence) or isinstance(given, bytes | bytearray):
        raise PromptError(f"prompts is {given!r}: expected text, a list of token ids, or a list of these")
    if not given:
        raise PromptError("no prompts: expected text, a list of token ids, or a list of these")
    if all(isinstance(item, int) for item in given):
        return [given]
    for place, item in enumerate(given):
        ids = isinstance(item, Sequence) and not isinstance(item, bytes | bytearray)
        if not isinstance(item, str) and not (ids and all(isinstance(token, int) for token in item)):
            raise PromptError(f"prompt {place} is {item!r}: expected text or a list of token ids")
    return list(given)


def _as_params(given: SamplingParams | Sequence[SamplingParams] | None, size: int) -> list[SamplingParams]:
    if given is None:
        given = SamplingParams()
    if isinstance(given, SamplingParams):
        return [given] * size
    several: Any = given
    if not isinstance(several, Sequence) or not all(isinstance(own, SamplingParams) for own in several):
        raise InvalidInputError(f"sampling_params is {several!r}: expected SamplingParams, or one for each prompt")
    if len(given) != size:
        raise InvalidInputError(f"got {len(given)} sampling_params for {size} prompts: expected one, or one for each")
    return list(given)
