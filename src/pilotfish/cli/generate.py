"""`pilotfish generate`: continue one prompt."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pilotfish.cli import options
from pilotfish.errors import PromptError

if TYPE_CHECKING:
    from pilotfish.engine.outputs import RequestOutput


def generate(
    prompt: Annotated[str | None, typer.Argument(help="The prompt; standard input if left out or '-'.")] = None,
    file: Annotated[Path | None, typer.Option("--file", "-f", help="Read the prompt from a file.")] = None,
    as_chat: Annotated[bool, typer.Option("--chat", help="Ask it as a user's message, by the chat template.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of streaming.")] = False,
    model: options.ModelName = options.DEMO_MODEL,
    temperature: options.Temperature = 1.0,
    top_k: options.TopK = 0,
    top_p: options.TopP = 1.0,
    seed: options.Seed = None,
    max_tokens: options.MaxTokens = 256,
    stop: options.Stop = None,
    stop_token_ids: options.StopTokenIds = None,
    ignore_eos: options.IgnoreEos = False,
    speculative_config: options.SpeculativeConfigText = None,
    method: options.Method = None,
    draft_model: options.DraftModel = None,
    num_speculative_tokens: options.NumSpeculativeTokens = None,
    verification: options.Verification = None,
    executor: options.ExecutorName = "auto",
    weights: options.Weights = "auto",
    threads: options.Threads = None,
) -> None:
    """Continue a prompt, streaming. On a terminal, drafted and accepted tokens are coloured."""
    text = _read_prompt(prompt, file)
    params = options.sampling_params(
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
        max_tokens=max_tokens,
        stop=stop,
        stop_token_ids=stop_token_ids,
        ignore_eos=ignore_eos,
    )
    config = options.speculative_config(
        speculative_config,
        method=method,
        model=draft_model,
        num_speculative_tokens=num_speculative_tokens,
        verification=verification,
    )
    llm = options.load_llm(model, config, executor=executor, weights=weights, threads=threads)
    question: Any = [{"role": "user", "content": text}] if as_chat else text
    if as_json:
        (output,) = llm.chat(question, params) if as_chat else llm.generate(question, params)
        print(json.dumps(as_record(output), ensure_ascii=False))
        return
    from pilotfish.cli.terminal import print_stream

    print_stream(llm.stream(question, params))


def as_record(output: "RequestOutput") -> dict[str, Any]:
    """One output as the object that `--json` prints."""
    (completion,) = output.outputs
    metrics = completion.metrics
    return {
        "text": completion.text,
        "token_ids": list(completion.token_ids),
        "finish_reason": completion.finish_reason.value,
        "seed": completion.seed,
        "usage": {
            "prompt_tokens": len(output.prompt_token_ids),
            "completion_tokens": len(completion.token_ids),
        },
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
