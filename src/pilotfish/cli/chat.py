"""`pilotfish chat`: an interactive conversation, with a model that is loaded here or with a server."""

import sys
from collections.abc import Callable, Sequence
from typing import Annotated, TypeAlias

import typer

from pilotfish.cli import options
from pilotfish.errors import InvalidInputError, SpeculativeConfigError

Answer: TypeAlias = Callable[[Sequence[dict[str, str]]], tuple[str, str]]
"""Prints the next answer of a conversation; gives it, and its figures in words."""


def chat(
    url: Annotated[
        str | None,
        typer.Option("--url", help="Talk to this server, which speaks OpenAI's protocol, and load nothing here."),
    ] = None,
    api_key: options.ApiKey = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            "-m",
            help=f"Directory, GGUF file, catalogue name or hub id, {options.DEMO_MODEL} by default; with --url what "
            "the server calls it.",
            rich_help_panel="Model",
        ),
    ] = None,
    temperature: options.Temperature = 0.7,
    top_k: options.TopK = 0,
    top_p: options.TopP = 0.9,
    seed: options.Seed = None,
    max_tokens: options.MaxTokens = 512,
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
    """Talk to the model. An empty line or end of input ends the conversation."""

    answer: Answer
    if url is not None:
        own = {
            "--speculative-config": speculative_config is not None,
            "--draft-model": draft_model is not None,
            "--verification": verification is not None,
            "--executor": executor != "auto",
            "--weights": weights != "auto",
            "--threads": threads is not None,
            "--kv-cache-memory": kv_cache_memory is not None,
            "--max-model-len": max_model_len is not None,
            "--recalibrate": recalibrate,
        }
        for flag in (flag for flag, given in own.items() if given):
            raise InvalidInputError(f"{flag} is the server's own business with --url: leave it out")
        draft_len = _draft_len(method, num_speculative_tokens)
        from pilotfish.bench.http_client import ChatServer
        from pilotfish.cli.remote_chat import RemoteModel

        server = ChatServer(url, model=model, api_key=api_key)
        # What says nothing is left out: other servers may not know the field.
        fields = {
            "top_k": top_k or None,
            "top_p": None if top_p == 1 else top_p,
            "seed": seed,
            "max_tokens": max_tokens,
        }
        known = {name: value for name, value in fields.items() if value is not None}
        answer = RemoteModel(server, {"temperature": temperature, **known}, draft_len).answer
    else:
        params = options.sampling_params(
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            seed=seed,
            max_tokens=max_tokens,
            stop=None,
            stop_token_ids=None,
            ignore_eos=False,
        )
        config = options.speculative_config(
            speculative_config,
            method=method,
            model=draft_model,
            num_speculative_tokens=num_speculative_tokens,
            verification=verification,
        )
        llm = options.load_llm(
            model or options.DEMO_MODEL,
            config,
            executor=executor,
            weights=weights,
            threads=threads,
            recalibrate=recalibrate,
            kv_cache_memory=kv_cache_memory,
            max_model_len=max_model_len,
        )
        from pilotfish.cli.terminal import print_stream, speed

        def local(messages: Sequence[dict[str, str]]) -> tuple[str, str]:
            output = print_stream(llm.stream(list(messages), params))
            return output.text, speed(output)

        answer = local
    _converse(answer)


def _converse(answer: Answer) -> None:
    """Asks and answers in turn."""
    messages: list[dict[str, str]] = []
    while (question := _ask()) is not None:
        messages.append({"role": "user", "content": question})
        text, figures = answer(messages)
        messages.append({"role": "assistant", "content": text})
        sys.stderr.write(f"[{figures}]\n\n")


def _draft_len(method: str | None, num_speculative_tokens: str | None) -> int | None:
    """What a request says about speculation: the most tokens to draft, 0 for none, `None` for the server's own way."""
    if method not in (None, "auto", "off"):
        raise SpeculativeConfigError(
            f"--method {method}: the drafter is the server's own with --url; expected auto or off"
        )
    if method == "off":
        return 0
    if num_speculative_tokens in (None, "auto"):
        return None
    try:
        return int(str(num_speculative_tokens))
    except ValueError:
        raise SpeculativeConfigError(
            f"--num-speculative-tokens {num_speculative_tokens}: expected a number of tokens, or auto"
        ) from None


def _ask() -> str | None:
    """The user's next message, or `None` at the end."""
    try:
        return input("> " if sys.stdin.isatty() else "").strip() or None
    except EOFError:
        return None
