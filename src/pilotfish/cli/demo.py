"""`pilotfish demo`: plain and speculative decoding side by side on a handful of prompts."""

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from pilotfish.cli import options

if TYPE_CHECKING:
    from pilotfish.engine.llm import LLM
    from pilotfish.engine.outputs import CompletionOutput
    from pilotfish.sampling.params import SamplingParams

_SEED = 7


@dataclass(frozen=True, slots=True)
class _Prompt:
    title: str
    text: str
    temperature: float = 0.0


PROMPTS = (
    _Prompt(
        "edit code (copies its input)",
        "Add a docstring to this function and repeat the whole code:\n\n"
        "def moving_average(values, window):\n"
        "    totals = [0.0]\n"
        "    for value in values:\n"
        "        totals.append(totals[-1] + value)\n"
        "    return [(totals[i + window] - totals[i]) / window for i in range(len(values) - window + 1)]\n",
    ),
    _Prompt(
        "correct a text (copies its input)",
        "Repeat this text and correct its spelling: The litle harbour wakes befor dawn. Fishing boats leave one "
        "after another, and the gulls folow them out past the breakwater. By noon the boats come back, the boxes are "
        "weighed, and the catch is sold on the quay.",
    ),
    _Prompt("explain", "Explain in a few sentences why the sky is blue."),
    _Prompt("list", "List ten European capitals, each with its country."),
    _Prompt("story, sampled at temperature 0.7", "Tell a short story about a pilot fish and a shark.", temperature=0.7),
)


def demo(
    model: options.ModelName = options.DEMO_MODEL,
    max_tokens: Annotated[int, typer.Option("--max-tokens", help="Tokens per answer at most.")] = 128,
    method: options.Method = None,
    draft_model: options.DraftModel = None,
    num_speculative_tokens: options.NumSpeculativeTokens = None,
    executor: options.ExecutorName = "auto",
    weights: options.Weights = "auto",
    threads: options.Threads = None,
    recalibrate: options.Recalibrate = False,
) -> None:
    """Generate with speculation off and on, compare speed and token ids.

    Exit code 1 if any id differs, or if nothing was drafted, for then nothing was compared.
    """
    from pilotfish.sampling.params import SamplingParams

    config = options.speculative_config(
        None, method=method, model=draft_model, num_speculative_tokens=num_speculative_tokens, verification=None
    )
    llm = options.load_llm(model, config, executor=executor, weights=weights, threads=threads, recalibrate=recalibrate)
    results = []
    for prompt in PROMPTS:
        params = SamplingParams(temperature=prompt.temperature, seed=_SEED, max_tokens=max_tokens)
        results.append((prompt, *_both(llm, prompt, params)))
    sys.exit(0 if _report(results) else 1)


def _both(llm: "LLM", prompt: _Prompt, params: "SamplingParams") -> tuple["CompletionOutput", "CompletionOutput"]:
    """The same request without and with speculation, both streamed."""
    from pilotfish.cli.terminal import print_stream

    messages = [{"role": "user", "content": prompt.text}]
    print(f"\n=== {prompt.title}\n--- plain")
    plain = print_stream(llm.stream(messages, params, num_speculative_tokens=0))
    print("--- speculative (drafted and accepted tokens are coloured on a terminal)")
    speculative = print_stream(llm.stream(messages, params))
    return plain, speculative


def _report(results: list[tuple[_Prompt, "CompletionOutput", "CompletionOutput"]]) -> bool:
    """Prints the comparison; returns whether all token ids are identical."""
    from rich.console import Console
    from rich.table import Table

    table = Table("prompt", "plain tokens/s", "speculative tokens/s", "ratio", "mean acceptance length", "token ids")
    for prompt, plain, speculative in results:
        before, after = (output.metrics.decode_tokens_per_second for output in (plain, speculative))
        table.add_row(
            prompt.title,
            f"{before:.1f}" if before else "-",
            f"{after:.1f}" if after else "-",
            f"{after / before:.2f}" if before and after else "-",
            f"{speculative.metrics.tokens_per_round:.2f}",
            "identical" if plain.token_ids == speculative.token_ids else "DIFFERENT",
        )
    console = Console()
    console.print()
    console.print(table)
    identical = all(plain.token_ids == speculative.token_ids for _, plain, speculative in results)
    drafted = sum(speculative.metrics.drafted_tokens for _, _, speculative in results)
    verdict = "All token ids are identical with speculation on and off." if identical else "TOKEN IDS DIFFER."
    console.print(f"{verdict} {drafted} tokens were drafted.")
    return identical and drafted > 0
