"""`pilotfish generate`: continue one prompt."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pilotfish.cli import options
from pilotfish.errors import PromptError, SamplingParamsError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pilotfish.engine.outputs import CompletionOutput, Logprob, RequestOutput


def generate(
    prompt: Annotated[str | None, typer.Argument(help="The prompt; standard input if left out or '-'.")] = None,
    file: Annotated[Path | None, typer.Option("--file", "-f", help="Read the prompt from a file.")] = None,
    as_chat: Annotated[bool, typer.Option("--chat", help="Ask it as a user's message, by the chat template.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of streaming.")] = False,
    model: options.ModelName = options.DEMO_MODEL,
    temperature: options.Temperature = 1.0,
    top_k: options.TopK = 0,
    top_p: options.TopP = 1.0,
    min_p: options.MinP = 0.0,
    typical_p: options.TypicalP = 1.0,
    repetition_penalty: options.RepetitionPenalty = 1.0,
    presence_penalty: options.PresencePenalty = 0.0,
    frequency_penalty: options.FrequencyPenalty = 0.0,
    no_repeat_ngram_size: options.NoRepeatNgramSize = 0,
    logit_bias: options.LogitBias = None,
    allowed_token_ids: options.AllowedTokenIds = None,
    banned_token_ids: options.BannedTokenIds = None,
    bad_words: options.BadWords = None,
    structured_outputs: options.StructuredOutputsText = None,
    seed: options.Seed = None,
    n: options.Samples = 1,
    best_of: options.BestOf = None,
    max_tokens: options.MaxTokens = 256,
    min_tokens: options.MinTokens = 0,
    stop: options.Stop = None,
    stop_token_ids: options.StopTokenIds = None,
    ignore_eos: options.IgnoreEos = False,
    include_stop_str_in_output: options.IncludeStop = False,
    skip_special_tokens: options.SkipSpecialTokens = True,
    logprobs: options.Logprobs = None,
    logprobs_mode: options.LogprobsMode = "raw_logprobs",
    prompt_logprobs: options.PromptLogprobs = None,
    speculative_config: options.SpeculativeConfigText = None,
    method: options.Method = None,
    draft_model: options.DraftModel = None,
    num_speculative_tokens: options.NumSpeculativeTokens = None,
    verification: options.Verification = None,
    executor: options.ExecutorName = "auto",
    weights: options.Weights = "auto",
    threads: options.Threads = None,
    kv_cache_memory: options.KvCacheMemory = None,
    max_model_len: options.MaxModelLen = None,
    recalibrate: options.Recalibrate = False,
) -> None:
    """Continue a prompt, streaming. On a terminal, drafted and accepted tokens are coloured."""
    text = _read_prompt(prompt, file)
    params = options.sampling_params(
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        typical_p=typical_p,
        repetition_penalty=repetition_penalty,
        presence_penalty=presence_penalty,
        frequency_penalty=frequency_penalty,
        no_repeat_ngram_size=no_repeat_ngram_size,
        logit_bias=logit_bias,
        allowed_token_ids=allowed_token_ids,
        banned_token_ids=banned_token_ids,
        bad_words=bad_words,
        structured_outputs=structured_outputs,
        seed=seed,
        n=n,
        best_of=best_of,
        max_tokens=max_tokens,
        min_tokens=min_tokens,
        stop=stop,
        stop_token_ids=stop_token_ids,
        ignore_eos=ignore_eos,
        include_stop_str_in_output=include_stop_str_in_output,
        skip_special_tokens=skip_special_tokens,
        logprobs=logprobs,
        logprobs_mode=logprobs_mode,
        prompt_logprobs=prompt_logprobs,
    )
    for flag, value, off in (
        ("--n", n, 1),
        ("--best-of", best_of, None),
        ("--logprobs", logprobs, None),
        ("--prompt-logprobs", prompt_logprobs, None),
    ):
        if value != off and not as_json:
            raise SamplingParamsError(f"{flag} {value} needs --json: a stream shows the text of one sample")
    config = options.speculative_config(
        speculative_config,
        method=method,
        model=draft_model,
        num_speculative_tokens=num_speculative_tokens,
        verification=verification,
    )
    llm = options.load_llm(
        model,
        config,
        executor=executor,
        weights=weights,
        threads=threads,
        recalibrate=recalibrate,
        kv_cache_memory=kv_cache_memory,
        max_model_len=max_model_len,
    )
    question: Any = [{"role": "user", "content": text}] if as_chat else text
    if as_json:
        (output,) = llm.chat(question, params) if as_chat else llm.generate(question, params)
        print(json.dumps(as_record(output), ensure_ascii=False))
        return
    from pilotfish.cli.terminal import print_stream

    print_stream(llm.stream(question, params))


def as_record(output: "RequestOutput") -> dict[str, Any]:
    """One output as the object that `--json` prints; several samples are a list "outputs", with one usage."""
    samples = [_sample(completion) for completion in output.outputs]
    record: dict[str, Any] = samples[0] if len(samples) == 1 else {"outputs": samples}
    record["usage"] = {
        "prompt_tokens": len(output.prompt_token_ids),
        "completion_tokens": sum(len(completion.token_ids) for completion in output.outputs),
    }
    if output.prompt_logprobs is not None:
        record["prompt_logprobs"] = [_alternatives(own) for own in output.prompt_logprobs]
    return record


def _sample(completion: "CompletionOutput") -> dict[str, Any]:
    metrics = completion.metrics
    record: dict[str, Any] = {
        "text": completion.text,
        "token_ids": list(completion.token_ids),
        "finish_reason": completion.finish_reason.value,
        "seed": completion.seed,
        "metrics": {
            "rounds": metrics.rounds,
            "drafted_tokens": metrics.drafted_tokens,
            "accepted_tokens": metrics.accepted_tokens,
            "accepted_per_position": list(metrics.accepted_per_position),
            "tokens_per_round": metrics.tokens_per_round,
            "decode_tokens_per_second": metrics.decode_tokens_per_second,
            "time_to_first_token": metrics.time_to_first_token,
        },
    }
    if completion.logprobs is not None:
        record["logprobs"] = [_alternatives(own) for own in completion.logprobs]
    return record


def _alternatives(found: "Mapping[int, Logprob] | None") -> list[dict[str, Any]] | None:
    if found is None:
        return None
    return [
        {"token_id": token, "logprob": one.logprob, "rank": one.rank, "text": one.decoded_token}
        for token, one in found.items()
    ]


def _read_prompt(prompt: str | None, file: Path | None) -> str:
    if prompt is not None and file is not None:
        raise PromptError("got a prompt and --file: expected one of them")
    try:
        if file is not None:
            return file.read_text(encoding="utf-8")
        if prompt is not None and prompt != "-":
            prompt.encode("utf-8")  # arguments that are no UTF-8 arrive as lone surrogates
            return prompt
        if sys.stdin.isatty():
            raise PromptError("no prompt: give it as an argument, with --file, or on standard input")
        return sys.stdin.buffer.read().decode("utf-8")
    except OSError as error:
        raise PromptError(f"cannot read the prompt: {error}") from error
    except UnicodeError as error:
        raise PromptError(f"the prompt is not UTF-8 text: {error}; convert it first") from error
