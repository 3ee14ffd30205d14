"""The model card of a trained drafter: what it is, from what it was made, what it cost and what it gives.

Owns the text. Every figure in it comes from the run's own record.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pilotfish.train.disk import write_whole

TITLES = {"head": "EAGLE-3 head", "draft": "draft model", "exit": "exit adapter"}
METHODS = {"head": "eagle", "draft": "draft_model", "exit": "early_exit"}


def write_card(path: Path, outcome: Mapping[str, Any], run: Mapping[str, Any]) -> None:
    """Writes `README.md`.

    Args:
        path: the drafter's directory.
        outcome: `Outcome.as_dict`.
        run: `run.json`.

    Raises:
        DataSetError: the disk is full.
    """
    write_whole(path / "README.md", card(outcome, run).encode())


def card(outcome: Mapping[str, Any], run: Mapping[str, Any]) -> str:
    """The card as Markdown."""
    hours = outcome["seconds"] / 3600
    held_out, origin = outcome["held_out"], run["origin"]
    config = {"method": METHODS[run["kind"]], "model": "THIS DIRECTORY"}
    lines = [
        f"# {TITLES[run['kind']]} for {Path(run['model']).name}",
        "",
        "Made by `pilotfish train` from text that the target itself wrote. It changes how fast answers come, never",
        "what they are.",
        "",
        "```python",
        f"LLM({run['model']!r}, speculative_config={config!r})",
        "```",
        "",
        "## How it was made",
        "",
        "| | |",
        "|---|---|",
        f"| target checksum | `{run['target'][:16]}` |",
        f"| data | `{Path(run['data_directory']).name}`, {run['shards']} shards, checksum `{run['data'][:16]}` |",
        f"| command | `{origin.get('command', 'unknown')}` |",
        f"| commit | `{origin.get('commit', 'unknown')}` |",
        f"| training | {outcome['tokens']:,} tokens, {outcome['steps']:,} steps, {hours:.2f} hours |",
        f"| ended by | {outcome['ended']}; the weights of step {outcome['best_step']:,} |",
        f"| trained parameters | {outcome['parameters']:,} |",
        f"| size | {outcome['file_bytes'] / 1e6:.1f} MB |",
        f"| draft vocabulary | covers {run['draft_vocab_coverage']:.1%} of the answers' tokens |",
        f"| shape | `{json.dumps(run['student'])}` |",
        "",
        "## What it gives, on held-out text of the target",
        "",
        "| depth | agrees with the target's first choice | accepted at temperature 0 | at temperature 1 | "
        "tokens per round at this draft length |",
        "|---|---|---|---|---|",
    ]
    by_depth = (held_out[name] for name in ("agreement", "greedy", "sampled", "tokens_per_round"))
    for depth, (agreement, greedy, sampled, tokens) in enumerate(zip(*by_depth, strict=True), 1):
        lines.append(f"| {depth} | {agreement:.3f} | {greedy:.3f} | {sampled:.3f} | {tokens:.3f} |")
    lines += [
        "",
        f"Projected speedup at temperature 0: {held_out['projected_speedup']:.2f}x with {held_out['draft_len']} "
        "drafted tokens per round, by pass times measured on the machine it was trained on.",
    ]
    check = outcome["check"]
    if check is not None:
        same = "identical" if check["answers_identical"] else "not identical"
        states = "identical" if check["states_identical"] else f"equal up to {check['states_difference']:.1g}"
        lines += [
            "",
            f"Measured there with the engine: {check['speedup']:.2f}x ({check['plain_tokens_per_second']:.1f} to "
            f"{check['tokens_per_second']:.1f} tokens/s), {check['tokens_per_round']:.3f} tokens per round; answers "
            f"with and without it {same}; hidden states of training and of serving {states}.",
        ]
    return "\n".join([*lines, ""])
