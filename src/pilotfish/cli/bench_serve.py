"""`pilotfish bench serve`: what a server delivers under load, plain and speculative."""

import json
import shlex
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pilotfish.cli import options
from pilotfish.cli.bench import print_table, progress_bar, require_writable
from pilotfish.errors import InvalidInputError

if TYPE_CHECKING:
    from pilotfish.bench.http_client import ChatServer
    from pilotfish.bench.load import Level
    from pilotfish.bench.serve import Side

PLAIN, SPECULATIVE = "plain", "speculative"


def serve(
    url: Annotated[
        str | None, typer.Option("--url", help="Of a running server; one is started on this machine by default.")
    ] = None,
    plain_url: Annotated[
        str | None, typer.Option("--plain-url", help="Of another server for the plain side, of the same model.")
    ] = None,
    plain_requests: Annotated[
        bool,
        typer.Option("--plain-requests", help="Send only OpenAI's fields: one side, for servers of other engines."),
    ] = False,
    api_key: options.ApiKey = None,
    concurrency: Annotated[
        str | None, typer.Option("--concurrency", help="Requests at a time, with commas; 1,4,16 by default.")
    ] = None,
    rate: Annotated[
        str | None, typer.Option("--rate", help="Requests per second, with commas; they come by chance (Poisson).")
    ] = None,
    requests: Annotated[
        int | None, typer.Option("--requests", help="Per load, side and repetition; by default as the load asks for.")
    ] = None,
    questions: Annotated[
        Path | None, typer.Option("--questions", help="JSONL in Spec-Bench's form; a set of our own by default.")
    ] = None,
    temperature: options.Temperature = 0.0,
    max_tokens: Annotated[int, typer.Option("--max-tokens", help="Tokens per answer at most.")] = 64,
    repeats: Annotated[int, typer.Option("--repeats", help="Times everything is measured, for the spread.")] = 2,
    seed: Annotated[int, typer.Option("--seed", help="Replays the answers and the arrival times.")] = 0,
    fresh_prompts: Annotated[
        bool,
        typer.Option(
            "--fresh-prompts", help="Begin every request differently: no prefix cache helps, no text compares."
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
    markdown: Annotated[Path | None, typer.Option("--markdown", help="Write the table to this file.")] = None,
    html: Annotated[Path | None, typer.Option("--html", help="Write a page with plots to this file.")] = None,
    model: Annotated[
        str | None, typer.Option("--model", "-m", help="What to serve; with --url, the name to ask the server for.")
    ] = None,
    serve_flags: Annotated[
        str, typer.Option("--serve-flags", help="Further flags of `pilotfish serve`, as one text.")
    ] = "",
) -> None:
    """Put load on a server, and compare plain and speculative decoding in speed, latency and text.

    Exit code 1 if a question got different texts from a Pilotfish server, or if requests failed.
    """
    levels = _levels(concurrency, rate, seed)
    _check(url, plain_url, plain_requests, serve_flags)
    for file in (markdown, html):
        require_writable(file)
    from pilotfish.bench import serve_report as reports
    from pilotfish.bench.http_client import ChatServer
    from pilotfish.bench.provenance import provenance
    from pilotfish.bench.questions import built_in, by_turns_of_categories, load_questions
    from pilotfish.bench.serve import ServeSettings, header, measure_serving

    settings = ServeSettings(requests, max_tokens, temperature, repeats, seed, fresh_prompts)
    asked = by_turns_of_categories(built_in() if questions is None else load_questions(questions))
    with ExitStack() as stack:
        address = url or stack.enter_context(_started(model or options.DEMO_MODEL, serve_flags))
        name = model if url is not None else None
        server = ChatServer(address, model=name, api_key=api_key)
        plain = ChatServer(plain_url, model=name, api_key=api_key) if plain_url is not None else server
        sides, servers = _sides(server, plain, plain_requests)
        with progress_bar("runs") as progress:
            result = measure_serving(sides, levels, asked, settings, progress=progress)
    report = {**result.as_dict(), "settings": header(servers, levels, asked, settings), **provenance(seed)}
    report["settings"]["serve_flags"] = serve_flags
    for file, render in ((markdown, reports.markdown), (html, reports.html)):
        if file is not None:
            file.write_text(render(report), encoding="utf-8")
    failed = list(reports.failures(report))
    if as_json:
        print(json.dumps(report))
    else:
        print_table(reports.summary_line(report), reports.HEADINGS, list(reports.table_rows(report)))
        for line in failed:
            print(line)
    promised = server.is_ours and plain.is_ours
    sys.exit(1 if failed or (promised and not report["identical"]) else 0)


def _sides(
    server: "ChatServer", plain: "ChatServer", plain_requests: bool
) -> tuple[list["Side"], dict[str, "ChatServer"]]:
    """Plain first: it is what the others are compared with."""
    from pilotfish.bench.serve import side_of, speculation_fields

    if plain is not server:
        fields: list[dict[str, Any]] = [
            speculation_fields(plain=each is plain) if each.is_ours and not plain_requests else {}
            for each in (plain, server)
        ]
        sides = [side_of(plain, PLAIN, fields=fields[0]), side_of(server, SPECULATIVE, fields=fields[1])]
        return sides, {PLAIN: plain, SPECULATIVE: server}
    if plain_requests or not server.is_ours:
        return [side_of(server, "server")], {"server": server}
    sides = [side_of(server, name, fields=speculation_fields(plain=name == PLAIN)) for name in (PLAIN, SPECULATIVE)]
    return sides, {PLAIN: server, SPECULATIVE: server}


@contextmanager
def _started(model: str, serve_flags: str) -> Iterator[str]:
    from pilotfish.bench.server_process import served_by

    with served_by(model, shlex.split(serve_flags)) as url:
        yield url


def _check(url: str | None, plain_url: str | None, plain_requests: bool, serve_flags: str) -> None:
    """Refuses flags that would have no effect."""
    if url is not None and serve_flags:
        raise InvalidInputError("--serve-flags are for the server that is started here: leave them or --url out")
    if url is None and plain_url is not None:
        raise InvalidInputError("--plain-url needs --url: one server for each side")


def _levels(concurrency: str | None, rate: str | None, seed: int) -> list["Level"]:
    from pilotfish.bench.load import Closed, Open

    if concurrency is None and rate is None:
        concurrency = "1,4,16"
    try:
        levels: list[Level] = [Closed(int(part)) for part in (concurrency or "").split(",") if part.strip()]
        levels += [Open(float(part), seed) for part in (rate or "").split(",") if part.strip()]
    except ValueError as error:
        if isinstance(error, InvalidInputError):
            raise
        raise InvalidInputError(
            f"--concurrency {concurrency!r}, --rate {rate!r}: expected numbers with commas between, such as 1,4,16"
        ) from None
    if not levels or len(set(levels)) < len(levels):
        raise InvalidInputError(
            f"--concurrency {concurrency!r}, --rate {rate!r}: expected one or more loads, each once"
        )
    return levels
