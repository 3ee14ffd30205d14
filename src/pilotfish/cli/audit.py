"""`pilotfish audit`: prove that speculation changes nothing, here or on somebody else's server."""

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pilotfish.cli import audit_checks, options
from pilotfish.errors import InvalidInputError

if TYPE_CHECKING:
    from pilotfish.audit.results import Level, Report

_ENDPOINT = "Endpoint"
_MODEL = "Model"


def audit(
    level: Annotated[
        list[str] | None,
        typer.Option(
            "--level", help="theory, noise, identity, law or endpoint; repeatable. All local ones by default."
        ),
    ] = None,
    size: Annotated[str | None, typer.Option("--size", help="ci, standard (the default) or full.")] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="Replays a run.")] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Take a fresh seed, and print it.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    html: Annotated[Path | None, typer.Option("--html", help="Write a report with plots to this file.")] = None,
    workers: Annotated[
        int | None,
        typer.Option("--workers", help="Processes of the theory and law levels; one per core, at most 4, by default."),
    ] = None,
    self_test: Annotated[
        bool, typer.Option("--self-test", help="Show the audit known-bad decoders; it must catch every one.")
    ] = False,
    repeat: Annotated[
        int | None, typer.Option("--repeat", help="Runs of the self-test, each with its own seed; 1 by default.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            "-m",
            help="Real model of the identity level, or reference of the endpoint level; the demo model by default, "
            "'none' audits toy models only.",
            rich_help_panel=_MODEL,
        ),
    ] = None,
    executor: Annotated[
        str | None, typer.Option("--executor", help="auto (the default), native or torch.", rich_help_panel=_MODEL)
    ] = None,
    weights: Annotated[
        str | None,
        typer.Option(
            "--weights",
            help=options.WEIGHTS_HELP,
            rich_help_panel=_MODEL,
        ),
    ] = None,
    threads: options.Threads = None,
    base_url: Annotated[
        str | None,
        typer.Option("--base-url", help="Server under audit, up to /v1.", rich_help_panel=_ENDPOINT),
    ] = None,
    reference_url: Annotated[
        str | None,
        typer.Option(
            "--reference-url",
            help="The same weights decoded plainly; without it, --model is the reference.",
            rich_help_panel=_ENDPOINT,
        ),
    ] = None,
    endpoint_model: Annotated[
        str | None,
        typer.Option("--endpoint-model", help="Name to ask the servers for.", rich_help_panel=_ENDPOINT),
    ] = None,
    api_key_env: Annotated[
        str | None,
        typer.Option("--api-key-env", help="Environment variable with the servers' key.", rich_help_panel=_ENDPOINT),
    ] = None,
    tokens: Annotated[
        int | None,
        typer.Option(
            "--tokens", help="Tokens to sample from each server at most; 20,000 by default.", rich_help_panel=_ENDPOINT
        ),
    ] = None,
    max_requests: Annotated[
        int | None,
        typer.Option(
            "--max-requests", help="Requests to each server at most; 4,000 by default.", rich_help_panel=_ENDPOINT
        ),
    ] = None,
    prompt: Annotated[
        list[str] | None,
        typer.Option("--prompt", help="Sample after this text; repeatable.", rich_help_panel=_ENDPOINT),
    ] = None,
) -> None:
    """Test that speculation changes neither tokens nor their law. Exit code 1 on a finding."""
    from pilotfish.audit.run import DEFAULT_SEED, LOCAL_LEVELS
    from pilotfish.sampling.params import SEED_LIMIT, fresh_seed

    if fresh and seed is not None:
        raise InvalidInputError("got --fresh and --seed: expected one of them")
    own_seed = fresh_seed() if fresh else DEFAULT_SEED if seed is None else seed
    if not 0 <= own_seed < SEED_LIMIT:
        raise InvalidInputError(f"--seed {own_seed}: expected an integer in [0, 2**64)")
    for flag, count in (("--repeat", repeat), ("--workers", workers)):
        if count is not None and count < 1:
            raise InvalidInputError(f"{flag} {count}: expected an integer of at least 1")
    typed = audit_checks.given(
        size=size,
        html=html,
        workers=workers,
        repeat=repeat,
        model=model,
        executor=executor,
        weights=weights,
        threads=threads,
        base_url=base_url,
        reference_url=reference_url,
        endpoint_model=endpoint_model,
        api_key_env=api_key_env,
        tokens=tokens,
        max_requests=max_requests,
        prompt=prompt,
    )
    under_test = (model or options.DEMO_MODEL, executor or "auto", weights or "auto", threads)
    say = _quiet if as_json else print
    if self_test:
        audit_checks.check_self_test(typed)
        say(f"seed {own_seed}")
        sys.exit(0 if _self_test(own_seed, repeat or 1, level, as_json) else 1)

    levels = level or (["endpoint"] if base_url is not None else list(LOCAL_LEVELS))
    of_a_server = "endpoint" in levels
    if of_a_server:
        if set(levels) != {"endpoint"}:
            raise InvalidInputError("the endpoint level audits a server and runs by itself: give it no other --level")
        audit_checks.check_endpoint(typed)
    else:
        audit_checks.check_local(typed, levels, model)
    if html is not None:
        audit_checks.check_writable(html)
    say(f"seed {own_seed}")
    if of_a_server:
        report = _endpoint(
            own_seed,
            base_url=base_url,
            reference_url=reference_url,
            name=endpoint_model,
            api_key_env=api_key_env,
            tokens=20_000 if tokens is None else tokens,
            max_requests=4_000 if max_requests is None else max_requests,
            prompts=prompt,
            model=under_test,
        )
        if not as_json:
            _print_level(report.levels[0])
    else:
        report = _local(levels, size or "standard", own_seed, workers, under_test, as_json)
    if html is not None:
        from pilotfish.audit.report import as_html

        try:
            html.write_text(as_html(report), encoding="utf-8")
        except OSError as error:
            raise InvalidInputError(f"--html: cannot write {html}: {error}") from error
    if as_json:
        print(json.dumps(report.as_record()))
    else:
        print("PASSED" if report.passed else "FAILED")
    sys.exit(0 if report.passed else 1)


def _quiet(text: str) -> None:
    """--json prints nothing but the report."""


def _local(
    levels: list[str],
    size: str,
    seed: int,
    workers: int | None,
    model: tuple[str, str, str, int | None],
    as_json: bool,
) -> "Report":
    import torch

    from pilotfish.audit import run

    run.check_levels(levels, size)  # before the model is loaded
    name, executor, weights, threads = model
    under_test = None
    if "identity" in levels and name != "none":
        under_test = run.model_under_test(name, executor=executor, weights=weights, threads=threads)  # type: ignore[arg-type]
    torch.set_num_threads(min(2, torch.get_num_threads()))
    tell = (lambda level: None) if as_json else _print_level
    return run.audit(levels, size=size, seed=seed, model=under_test, workers=workers, tell=tell)


def _endpoint(
    seed: int,
    *,
    base_url: str | None,
    reference_url: str | None,
    name: str | None,
    api_key_env: str | None,
    tokens: int,
    max_requests: int,
    prompts: list[str] | None,
    model: tuple[str, str, str, int | None],
) -> "Report":
    from pilotfish.audit.endpoint import run_endpoint
    from pilotfish.audit.endpoint_client import Server
    from pilotfish.audit.endpoint_reference import LocalReference
    from pilotfish.audit.endpoint_sampling import PROMPTS, EndpointPlan, ReferenceLaw
    from pilotfish.audit.results import Report
    from pilotfish.models.loading import load_model

    if base_url is None:
        raise InvalidInputError("the endpoint level needs --base-url: the server under audit, up to /v1")
    key = None
    if api_key_env is not None:
        key = os.environ.get(api_key_env)
        if key is None:
            raise InvalidInputError(f"--api-key-env: the environment has no variable {api_key_env!r}")
    plan = EndpointPlan(
        tokens=tokens, requests=max_requests, prompts=tuple(prompts) if prompts else PROMPTS, seed=seed % 2**31
    )
    server = Server(base_url, model=name, api_key=key)
    reference: Server | ReferenceLaw
    if reference_url is not None:
        reference = Server(reference_url, model=name, api_key=key)
    else:
        local, executor, weights, threads = model
        own = load_model(local, executor=executor, weights=weights, threads=threads)  # type: ignore[arg-type]
        tokenizer = own.tokenizer
        reference = LocalReference(own.executor, tokenizer.encode, tokenizer.decode, tokenizer.vocab_size)
    return Report((run_endpoint(server, reference, plan),), seed, "endpoint")


def _print_level(level: "Level") -> None:
    verdict = "passed" if level.passed else "FAILED"
    print(
        f"\n{level.name}: {verdict}  ({level.tests} tests, {level.samples} samples, false-alarm rate "
        f"{level.false_alarm_rate:g}, {level.seconds:.0f} s)"
    )
    for finding in level.findings[:20]:
        print(f"  FINDING {finding}")
    if len(level.findings) > 20:
        print(f"  ... and {len(level.findings) - 20} more findings")
    print("  smallest effect seen with probability 0.99:")
    for what, effect in level.smallest_effect.items():
        print(f"    {effect:<8.2g} {what}")
    for note in level.notes:
        print(f"  {note}")


def _self_test(seed: int, repeat: int, levels: list[str] | None, as_json: bool) -> bool:
    """Shows every control of these levels to its level, `repeat` times; whether all were caught every time."""
    import torch

    from pilotfish.audit.controls import CONTROLS
    from pilotfish.audit.self_test import self_test

    known = sorted({control.level for control in CONTROLS})
    for level in levels or ():
        if level not in known:
            raise InvalidInputError(f"--level {level}: expected one that has controls, {', '.join(known)}")
    controls = [control for control in CONTROLS if levels is None or control.level in levels]
    torch.set_num_threads(1)
    runs = [self_test(seed + run, controls) for run in range(repeat)]
    record: list[dict[str, Any]] = []
    for place, control in enumerate(controls):
        caught = sum(bool(run[place].findings) for run in runs)
        findings = list(runs[0][place].findings)
        record.append(
            {"control": control.name, "level": control.level, "caught": caught, "runs": repeat, "findings": findings}
        )
    passed = all(row["caught"] == repeat for row in record)
    if as_json:
        print(json.dumps({"passed": passed, "controls": record}))
        return passed
    for row in record:
        print(f"{row['caught']} of {repeat}  {row['level']:<9} {row['control']}")
        print(f"{'':>12}{row['findings'][0] if row['findings'] else 'MISSED'}")
    print("PASSED" if passed else "FAILED: a control was not caught")
    return passed
