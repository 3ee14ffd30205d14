"""Command line: parses, calls, prints. One module per command; the only room that prints or configures logging.

Heavy imports happen inside the commands, so that `pilotfish --help` answers at once.
"""

import os
import sys

import typer

from pilotfish.cli.audit import audit
from pilotfish.cli.bench import bench
from pilotfish.cli.bench_serve import serve as bench_serve
from pilotfish.cli.chat import chat
from pilotfish.cli.demo import demo
from pilotfish.cli.doctor import doctor
from pilotfish.cli.generate import generate
from pilotfish.cli.models import models
from pilotfish.cli.serve import serve
from pilotfish.cli.train import train
from pilotfish.cli.train_models import convert
from pilotfish.cli.tune import tune
from pilotfish.errors import PilotfishError

app = typer.Typer(
    name="pilotfish",
    help="Lossless speculative decoding: faster generation, exactly the same tokens.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(generate)
app.command()(chat)
app.command()(demo)
app.command()(serve)
app.command()(doctor)
app.command()(tune)
app.command()(audit)
app.command()(convert)
app.add_typer(models, name="models")
bench.command("serve")(bench_serve)
app.add_typer(bench, name="bench")
app.add_typer(train, name="train")


def main() -> None:
    """Entry point: a caller's mistake is one line on standard error and exit code 2."""
    try:
        app()
    except PilotfishError as error:
        sys.stderr.write(f"pilotfish: {' '.join(str(error).split())}\n")
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        # The reader went away (`| head`); flushing at exit would fail the same way.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
