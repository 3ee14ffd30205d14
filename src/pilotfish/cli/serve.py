"""`pilotfish serve`: OpenAI's protocol over HTTP."""

import logging
import sys
from typing import Annotated

import typer

from pilotfish.cli import options
from pilotfish.server.settings import ServerSettings

_SERVER = "Server"
_LIMITS = "Limits"
_DEFAULTS = ServerSettings()


def serve(
    model: Annotated[str, typer.Argument(help="Directory, GGUF file, catalogue name or hub id.")] = options.DEMO_MODEL,
    host: Annotated[
        str, typer.Option("--host", help="Address to listen on.", rich_help_panel=_SERVER)
    ] = _DEFAULTS.host,
    port: Annotated[int, typer.Option("--port", help="0 takes a free one.", rich_help_panel=_SERVER)] = _DEFAULTS.port,
    served_model_name: Annotated[
        str | None,
        typer.Option("--served-model-name", help="What clients call the model.", rich_help_panel=_SERVER),
    ] = None,
    api_key: Annotated[
        str | None,
        typer.Option(
            "--api-key",
            envvar="PILOTFISH_API_KEY",
            show_envvar=True,
            help="What clients must send as bearer token.",
            rich_help_panel=_SERVER,
        ),
    ] = None,
    log_prompts: Annotated[
        bool, typer.Option("--log-prompts", help="Write prompts and outputs into the log.", rich_help_panel=_SERVER)
    ] = False,
    drain_timeout: Annotated[
        float,
        typer.Option("--drain-timeout", help="Seconds to end running requests on SIGTERM.", rich_help_panel=_SERVER),
    ] = _DEFAULTS.drain_timeout,
    max_waiting: Annotated[
        int, typer.Option("--max-waiting", help="Most samples in the queue; then 429.", rich_help_panel=_LIMITS)
    ] = _DEFAULTS.max_waiting,
    request_timeout: Annotated[
        float,
        typer.Option(
            "--request-timeout", help="Seconds a request may take, waiting included.", rich_help_panel=_LIMITS
        ),
    ] = _DEFAULTS.request_timeout,
    body_timeout: Annotated[
        float, typer.Option("--body-timeout", help="Seconds a client may take to ask.", rich_help_panel=_LIMITS)
    ] = _DEFAULTS.body_timeout,
    write_timeout: Annotated[
        float,
        typer.Option(
            "--write-timeout", help="Seconds to wait for a client that reads nothing.", rich_help_panel=_LIMITS
        ),
    ] = _DEFAULTS.write_timeout,
    max_body_bytes: Annotated[
        int, typer.Option("--max-body-bytes", help="Largest request body.", rich_help_panel=_LIMITS)
    ] = _DEFAULTS.max_body_bytes,
    max_prompt_tokens: Annotated[
        int | None,
        typer.Option(
            "--max-prompt-tokens", help="Longest prompt; the context less 1 by default.", rich_help_panel=_LIMITS
        ),
    ] = None,
    max_n: Annotated[
        int, typer.Option("--max-n", help="Most samples per prompt.", rich_help_panel=_LIMITS)
    ] = _DEFAULTS.max_n,
    max_prompts: Annotated[
        int, typer.Option("--max-prompts", help="Most prompts per request.", rich_help_panel=_LIMITS)
    ] = _DEFAULTS.max_prompts,
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
    """Serve a model over HTTP: OpenAI's chat and completions, and a page to try it at /. SIGTERM lets requests end."""
    settings = ServerSettings(
        host=host,
        port=port,
        served_model_name=served_model_name,
        api_key=api_key,
        log_prompts=log_prompts,
        drain_timeout=drain_timeout,
        max_waiting=max_waiting,
        request_timeout=request_timeout,
        body_timeout=body_timeout,
        write_timeout=write_timeout,
        max_body_bytes=max_body_bytes,
        max_prompt_tokens=max_prompt_tokens,
        max_n=max_n,
        max_prompts=max_prompts,
    )
    config = options.speculative_config(
        speculative_config,
        method=method,
        model=draft_model,
        num_speculative_tokens=num_speculative_tokens,
        verification=verification,
    )
    from pilotfish.server import process

    with process.bind(settings) as sock:  # before the model is loaded: a port in use shows at once
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
        _log()
        name = process.served_name(model, settings)
        code = process.serve(llm, sock, settings, name=name, on_ready=lambda url: _ready(name, url))
    raise typer.Exit(code)


def _ready(name: str, url: str) -> None:
    sys.stderr.write(f"pilotfish: serving {name} on {url}/v1, a page on {url}/\n")
    sys.stderr.flush()


def _log() -> None:
    """The access log as it is, warnings with time and origin; both on standard error."""
    access = logging.StreamHandler()
    access.setFormatter(logging.Formatter("%(message)s"))
    access_logger = logging.getLogger("pilotfish.server.access")
    access_logger.addHandler(access)
    access_logger.setLevel(logging.INFO)
    access_logger.propagate = False
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s", level=logging.WARNING)
