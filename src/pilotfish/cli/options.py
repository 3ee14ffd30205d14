"""Flags that several commands share, and how they become `LLM` and `SamplingParams`. One flag, one field, same name."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from pilotfish.errors import InvalidInputError, SamplingParamsError, SpeculativeConfigError

if TYPE_CHECKING:
    from pilotfish.engine.llm import LLM
    from pilotfish.sampling.params import SamplingParams

DEMO_MODEL = "smollm2-135m-instruct"

WEIGHTS_HELP = "Storage of the native executor: auto, float32, bfloat16, bfloat16-compute, int8."

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
    typer.Option("--weights", help=WEIGHTS_HELP, rich_help_panel=_MODEL),
]
Threads: TypeAlias = Annotated[
    int | None,
    typer.Option("--threads", help="At work in a pass; all physical cores by default.", rich_help_panel=_MODEL),
]
KvCacheMemory: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--kv-cache-memory",
        help="Of the key-value cache, such as 2GiB; a share of the free memory by default.",
        rich_help_panel=_MODEL,
    ),
]
MaxModelLen: TypeAlias = Annotated[
    int | None,
    typer.Option(
        "--max-model-len",
        help="Most tokens of a request, prompt and output; the context by default.",
        rich_help_panel=_MODEL,
    ),
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
    typer.Option("--max-tokens", help="Tokens to generate at most.", rich_help_panel=_SAMPLING),
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
MinP: TypeAlias = Annotated[
    float, typer.Option("--min-p", help="Only tokens this times as probable as the best.", rich_help_panel=_SAMPLING)
]
TypicalP: TypeAlias = Annotated[
    float, typer.Option("--typical-p", help="Only the most typical tokens of this mass.", rich_help_panel=_SAMPLING)
]
RepetitionPenalty: TypeAlias = Annotated[
    float,
    typer.Option(
        "--repetition-penalty", help="Above 1 weakens all tokens of prompt and output.", rich_help_panel=_SAMPLING
    ),
]
PresencePenalty: TypeAlias = Annotated[
    float,
    typer.Option("--presence-penalty", help="Above 0 weakens the tokens of the output.", rich_help_panel=_SAMPLING),
]
FrequencyPenalty: TypeAlias = Annotated[
    float,
    typer.Option("--frequency-penalty", help="The same, times each one's count.", rich_help_panel=_SAMPLING),
]
NoRepeatNgramSize: TypeAlias = Annotated[
    int,
    typer.Option("--no-repeat-ngram-size", help="No n-gram of this length twice; 0 is off.", rich_help_panel=_SAMPLING),
]
LogitBias: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--logit-bias", help='JSON such as {"42": -100}, added to logits; or @file.json.', rich_help_panel=_SAMPLING
    ),
]
AllowedTokenIds: TypeAlias = Annotated[
    list[int] | None,
    typer.Option("--allowed-token-ids", help="Only these token ids; repeatable.", rich_help_panel=_SAMPLING),
]
BannedTokenIds: TypeAlias = Annotated[
    list[int] | None,
    typer.Option("--banned-token-ids", help="Never this token id; repeatable.", rich_help_panel=_SAMPLING),
]
BadWords: TypeAlias = Annotated[
    list[str] | None, typer.Option("--bad-words", help="Never this text; repeatable.", rich_help_panel=_SAMPLING)
]
StructuredOutputsText: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--structured-outputs",
        help='JSON such as {"regex": "..."}, {"json": {...}} or {"choice": ["yes", "no"]}; or @file.json.',
        rich_help_panel=_SAMPLING,
    ),
]
Samples: TypeAlias = Annotated[
    int, typer.Option("--n", help="Samples; above 1 with --json only.", rich_help_panel=_SAMPLING)
]
BestOf: TypeAlias = Annotated[
    int | None,
    typer.Option("--best-of", help="Samples made, of which the n most probable count.", rich_help_panel=_SAMPLING),
]
MinTokens: TypeAlias = Annotated[
    int, typer.Option("--min-tokens", help="Tokens before the text may end.", rich_help_panel=_SAMPLING)
]
IncludeStop: TypeAlias = Annotated[
    bool,
    typer.Option("--include-stop-str-in-output", help="Leave the stop string in the text.", rich_help_panel=_SAMPLING),
]
SkipSpecialTokens: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--skip-special-tokens/--no-skip-special-tokens",
        help="Leave control tokens out of the text.",
        rich_help_panel=_SAMPLING,
    ),
]
Logprobs: TypeAlias = Annotated[
    int | None,
    typer.Option("--logprobs", help="Most probable tokens to report, with --json.", rich_help_panel=_SAMPLING),
]
LogprobsMode: TypeAlias = Annotated[
    str,
    typer.Option("--logprobs-mode", help="raw_logprobs or processed_logprobs.", rich_help_panel=_SAMPLING),
]
PromptLogprobs: TypeAlias = Annotated[
    int | None,
    typer.Option("--prompt-logprobs", help="The same for the prompt, with --json.", rich_help_panel=_SAMPLING),
]
SpeculativeConfigText: TypeAlias = Annotated[
    str | None,
    typer.Option("--speculative-config", help="JSON, or @file.json.", rich_help_panel=_SPECULATION),
]
Method: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--method",
        help="auto, lookup, ngram, suffix, recycle, table, draft_model, early_exit, eagle, or off.",
        rich_help_panel=_SPECULATION,
    ),
]
DraftModel: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--draft-model", help="Smaller model, EAGLE-3 head, exit adapter or table.", rich_help_panel=_SPECULATION
    ),
]
NumSpeculativeTokens: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--num-speculative-tokens", "-k", help="Tokens drafted per round, or auto.", rich_help_panel=_SPECULATION
    ),
]
Recalibrate: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--recalibrate", help="Measure again what a pass takes on this machine.", rich_help_panel=_SPECULATION
    ),
]
ApiKey: TypeAlias = Annotated[
    str | None, typer.Option("--api-key", envvar="PILOTFISH_API_KEY", help="Of the server.", show_envvar=True)
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
    num_speculative_tokens: str | None,
    verification: str | None,
) -> dict[str, Any] | None:
    """The configuration from `--speculative-config`, single flags taking precedence over its keys; "auto" if none says.

    Raises:
        SpeculativeConfigError: the text is no JSON object, or its file cannot be read.
    """
    example = '{"method": "ngram"}'
    config = json_object(text, "--speculative-config", example, SpeculativeConfigError) if text is not None else {}
    flags = {
        "method": method,
        "model": model,
        "num_speculative_tokens": _number_or_word(num_speculative_tokens),
        "verification": verification,
    }
    config.update({key: value for key, value in flags.items() if value is not None})
    if config.get("method") == "off":
        return None
    if "method" not in config and "model" not in config:
        config["method"] = "auto"
    return config


def _number_or_word(text: str | None) -> int | str | None:
    try:
        return None if text is None else int(text)
    except ValueError:
        return text  # "auto", or a mistake that the configuration names


def json_object(text: str, flag: str, example: str, error_type: type[InvalidInputError]) -> dict[str, Any]:
    """The JSON object that a flag's text is, or that its `@file` holds.

    Raises:
        InvalidInputError: of `error_type`; the text is no JSON object, or its file cannot be read.
    """
    source = flag
    if text.startswith("@"):
        source = text[1:]
        try:
            text = Path(source).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise error_type(f"{flag}: cannot read {source!r}: {error}") from error
    try:
        found = json.loads(text)
    except json.JSONDecodeError as error:
        raise error_type(f"{source}: expected a JSON object such as {example}: {error}") from error
    if not isinstance(found, dict):
        raise error_type(f"{source}: got {text.strip()[:60]!r}, expected a JSON object")
    return found


def load_llm(
    model: str,
    config: dict[str, Any] | None,
    *,
    executor: str,
    weights: str,
    threads: int | None,
    recalibrate: bool = False,
    kv_cache_memory: str | None = None,
    max_model_len: int | None = None,
) -> "LLM":
    """The `LLM` that the flags describe."""
    from pilotfish.engine.llm import LLM

    return LLM(
        model,
        speculative_config=config,
        executor=executor,  # type: ignore[arg-type]
        weights=weights,  # type: ignore[arg-type]
        threads=threads,
        recalibrate=recalibrate,
        kv_cache_memory=kv_cache_memory,
        max_model_len=max_model_len,
    )


def sampling_params(
    *,
    stop: list[str] | None = None,
    stop_token_ids: list[int] | None = None,
    banned_token_ids: list[int] | None = None,
    bad_words: list[str] | None = None,
    logit_bias: str | None = None,
    structured_outputs: str | None = None,
    **fields: Any,
) -> "SamplingParams":
    """The `SamplingParams` that the flags describe; `fields` are those that need no translation.

    Raises:
        SamplingParamsError: a value is out of its range, or a text is no JSON.
    """
    from pilotfish.sampling.params import SamplingParams

    if logit_bias is not None:
        fields["logit_bias"] = json_object(logit_bias, "--logit-bias", '{"42": -100}', SamplingParamsError)
    if structured_outputs is not None:
        fields["structured_outputs"] = json_object(
            structured_outputs, "--structured-outputs", '{"regex": "yes|no"}', SamplingParamsError
        )
    return SamplingParams(
        stop=stop or (),
        stop_token_ids=stop_token_ids or (),
        banned_token_ids=banned_token_ids or (),
        bad_words=bad_words or (),
        **fields,
    )
