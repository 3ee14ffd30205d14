"""Flags that several commands share, and how they become `LLM` and `SamplingParams`. One flag, one field, same name."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from pilotfish.errors import SpeculativeConfigError

if TYPE_CHECKING:
    from pilotfish.engine.llm import LLM
    from pilotfish.sampling.params import SamplingParams

DEMO_MODEL = "smollm2-135m-instruct"

_MODEL = "Model"
_SAMPLING = "Sampling"
_SPECULATION = "Speculation"

ModelName: TypeAlias = Annotated[
    str,
    typer.Option("--model", "-m", help="Directory, GGUF file, catalogue name or hub id.", rich_help_panel=_MODEL),
]
ExecutorName: TypeAlias = Annotated[
    str, typer.Option("--executor", help="auto, native or torch.", rich_help_panel=_MODEL)
]
Weights: TypeAlias = Annotated[
    str,
    typer.Option(
        "--weights", help="Storage of the native executor: auto, float32, bfloat16, int8.", rich_help_panel=_MODEL
    ),
]
Threads: TypeAlias = Annotated[
    int | None,
    typer.Option("--threads", help="Of the native executor; all physical cores by default.", rich_help_panel=_MODEL),
]
Temperature: TypeAlias = Annotated[
    float, typer.Option("--temperature", help="0 takes the most probable token.", rich_help_panel=_SAMPLING)
]
TopK: TypeAlias = Annotated[
    int, typer.Option("--top-k", help="Only this many most probable tokens; 0 is off.", rich_help_panel=_SAMPLING)
]
TopP: TypeAlias = Annotated[
    float, typer.Option("--top-p", help="Only the most probable tokens of this mass.", rich_help_panel=_SAMPLING)
]
Seed: TypeAlias = Annotated[
    int | None, typer.Option("--seed", help="Replays an output; fresh by default.", rich_help_panel=_SAMPLING)
]
MaxTokens: TypeAlias = Annotated[
    int | None,
    typer.Option(
        "--max-tokens", help="Tokens to generate at most; up to the context by default.", rich_help_panel=_SAMPLING
    ),
]
Stop: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--stop", help="Ends the text where it appears; repeatable.", rich_help_panel=_SAMPLING),
]
StopTokenIds: TypeAlias = Annotated[
    list[int] | None,
    typer.Option("--stop-token-ids", help="Token id that ends; repeatable.", rich_help_panel=_SAMPLING),
]
IgnoreEos: TypeAlias = Annotated[
    bool, typer.Option("--ignore-eos", help="Go on past the end-of-sequence token.", rich_help_panel=_SAMPLING)
]
SpeculativeConfigText: TypeAlias = Annotated[
    str | None,
    typer.Option("--speculative-config", help="JSON, or @file.json.", rich_help_panel=_SPECULATION),
]
Method: TypeAlias = Annotated[
    str | None,
    typer.Option("--method", help="Drafter: ngram, draft_model, or off.", rich_help_panel=_SPECULATION),
]
DraftModel: TypeAlias = Annotated[
    str | None,
    typer.Option("--draft-model", help="Smaller model with the same tokenizer.", rich_help_panel=_SPECULATION),
]
NumSpeculativeTokens: TypeAlias = Annotated[
    int | None,
    typer.Option("--num-speculative-tokens", "-k", help="Tokens drafted per round.", rich_help_panel=_SPECULATION),
]
Verification: TypeAlias = Annotated[
    str | None,
    typer.Option("--verification", help="match, rejection, block or traversal.", rich_help_panel=_SPECULATION),
]


def speculative_config(
    text: str | None,
    *,
    method: str | None,
    model: str | None,
    num_speculative_tokens: int | None,
    verification: str | None,
) -> dict[str, Any] | None:
    """The configuration from `--speculative-config`, single flags taking precedence over its keys.

    Raises:
        SpeculativeConfigError: the text is no JSON object, or its file cannot be read.
    """
    config: dict[str, Any] = _parse(text) if text is not None else {}
    flags = {
        "method": method,
        "model": model,
        "num_speculative_tokens": num_speculative_tokens,
        "verification": verification,
    }
    config.update({key: value for key, value in flags.items() if value is not None})
    if config.get("method") == "off":
        return None
    return config or None


def _parse(text: str) -> dict[str, Any]:
    source = "--speculative-config"
    if text.startswith("@"):
        source = text[1:]
        try:
            text = Path(source).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise SpeculativeConfigError(f"--speculative-config: cannot read {source!r}: {error}") from error
    try:
        config = json.loads(text)
    except json.JSONDecodeError as error:
        raise SpeculativeConfigError(
            f'{source}: expected a JSON object such as {{"method": "ngram"}}: {error}'
        ) from error
    if not isinstance(config, dict):
        raise SpeculativeConfigError(f"{source}: got {text.strip()[:60]!r}, expected a JSON object")
    return config


def load_llm(model: str, config: dict[str, Any] | None, *, executor: str, weights: str, threads: int | None) -> "LLM":
    """The `LLM` that the flags describe."""
    from pilotfish.engine.llm import LLM

    return LLM(model, speculative_config=config, executor=executor, weights=weights, threads=threads)  # type: ignore[arg-type]


def sampling_params(
    *,
    temperature: float,
    top_k: int,
    top_p: float,
    seed: int | None,
    max_tokens: int | None,
    stop: list[str] | None,
    stop_token_ids: list[int] | None,
    ignore_eos: bool,
) -> "SamplingParams":
    """The `SamplingParams` that the flags describe."""
    from pilotfish.sampling.params import SamplingParams

    return SamplingParams(
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
        max_tokens=max_tokens,
        stop=stop or (),
        stop_token_ids=stop_token_ids or (),
        ignore_eos=ignore_eos,
    )
