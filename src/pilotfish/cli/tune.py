"""`pilotfish tune`: which drafter and which draft length are fastest on this machine and these prompts."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pilotfish.cli import options
from pilotfish.cli.bench import print_table, progress_bar, require_writable
from pilotfish.errors import InvalidInputError

if TYPE_CHECKING:
    from pilotfish.bench.tune import TuneResult

DEFAULT_OUTPUT = Path("speculative_config.json")


def tune(
    prompts: Annotated[
        Path | None,
        typer.Option("--prompts", help="Text with a prompt per line, or JSONL; a set of our own by default."),
    ] = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="Continue the prompts as they are, without chat template.")
    ] = False,
    drafter: Annotated[
        list[str] | None,
        typer.Option("--drafter", help="A method or a JSON object; repeatable. By default all that need no model."),
    ] = None,
    lengths: Annotated[
        str | None, typer.Option("--lengths", help="Tokens drafted per round, with commas; 'auto' may be one.")
    ] = None,
    temperature: options.Temperature = 0.0,
    max_tokens: Annotated[int, typer.Option("--max-tokens", help="Tokens per answer at most.")] = 128,
    seed: Annotated[int, typer.Option("--seed", help="Replays the answers.")] = 0,
    minutes: Annotated[float, typer.Option("--minutes", help="Time to spend, about.")] = 5.0,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Where to write the configuration, for --speculative-config @FILE.")
    ] = DEFAULT_OUTPUT,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
    model: options.ModelName = options.DEMO_MODEL,
    draft_model: options.DraftModel = None,
    executor: options.ExecutorName = "auto",
    weights: options.Weights = "auto",
    threads: options.Threads = None,
) -> None:
    """Measure drafters and draft lengths on your prompts, and write the fastest as a configuration file.

    Exit code 1 if ids differ from plain decoding on an executor that promises they do not.
    """
    require_writable(output)
    if not minutes > 0:
        raise InvalidInputError(f"--minutes {minutes:g}: expected more than 0")
    from pilotfish.bench import tune as tuning
    from pilotfish.bench.provenance import provenance
    from pilotfish.bench.speed import prompt_of
    from pilotfish.sampling.params import SamplingParams

    drafters: list[dict[str, Any]] = [_drafter(text) for text in drafter or ()]
    if draft_model is not None:
        drafters.append({"method": "draft_model", "model": draft_model})
    to_measure = tuning.candidates(drafters or None, _lengths(lengths))
    texts = tuning.load_prompts(prompts)
    params = SamplingParams(temperature=temperature, seed=seed, max_tokens=max_tokens)
    llm = options.load_llm(model, None, executor=executor, weights=weights, threads=threads)
    ids = [
        llm.tokenizer.encode(text) if raw else prompt_of(llm.tokenizer, [{"role": "user", "content": text}])
        for text in texts
    ]
    with progress_bar("seconds") as progress:
        result = tuning.tune(llm, ids, to_measure, params, seconds=60 * minutes, progress=progress)
    output.write_text(json.dumps(result.config, indent=2) + "\n", encoding="utf-8")
    if as_json:
        print(json.dumps({**result.as_dict(), "output": str(output), **provenance(seed)}))
    else:
        _print(result, output)
    sys.exit(1 if result.exact and not result.identical else 0)


def _drafter(text: str) -> dict[str, Any]:
    if not text.lstrip().startswith("{"):
        return {"method": text}
    from pilotfish.bench.questions import parse_object

    return parse_object(text, "--drafter")


def _lengths(text: str | None) -> tuple[int | str, ...] | None:
    if text is None:
        return None
    try:
        return tuple(part.strip() if part.strip() == "auto" else int(part) for part in text.split(","))
    except ValueError:
        raise InvalidInputError(f"--lengths {text!r}: expected whole numbers or 'auto', with commas between") from None


def _print(result: "TuneResult", output: Path) -> None:
    from pilotfish.bench.report import POSITIONS, time_split

    rows = []
    for trial in (result.plain, *result.trials):
        totals = trial.totals
        speedup = result.speedup_of(trial)
        rows.append(
            (
                trial.candidate.name,
                len(trial.runs),
                f"{totals.tokens_per_second or 0.0:.1f}",
                "-" if speedup is None else f"{speedup:.2f}x",
                f"{totals.tokens_per_round or 0.0:.2f}",
                " ".join(f"{share:.2f}" for share in totals.acceptance_by_position[:POSITIONS]),
                time_split(totals.as_dict()),
                "identical" if result.same_ids(trial) else "differ",
            )
        )
    headings = (
        "drafter",
        "prompts",
        "tokens/s",
        "speedup",
        "mean acceptance length",
        "acceptance by position",
        "draft / verify / rest",
        "ids",
    )
    print_table("", headings, rows)
    print(result.recommendation)
    print(f"Written to {output}: pass it on with --speculative-config @{output}")
