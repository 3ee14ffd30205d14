"""`pilotfish train head | draft | exit | pool`, and `pilotfish convert`: drafters from a data set.

Owns the flags of each kind and what is printed; the training is `pilotfish.train`.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pilotfish.cli import options
from pilotfish.cli.train import train
from pilotfish.cli.training_flags import UNROLLING, training_flags
from pilotfish.errors import InvalidInputError

if TYPE_CHECKING:
    from pilotfish.models.files import ModelFiles
    from pilotfish.train.options import TrainOptions
    from pilotfish.train.session import Session
    from pilotfish.train.student import Student
    from pilotfish.train.vocabulary import DraftVocabulary

StartLayers = Annotated[
    str | None, typer.Option("--start-layers", help="The target's layers to start from, with commas.")
]


@train.command()
@training_flags(UNROLLING)
def head(
    session: "Session",
    train_options: "TrainOptions",
    layers: Annotated[int, typer.Option("--layers", help="Of the head; several only with --layout speculators.")] = 1,
    start_layers: StartLayers = None,
    boundaries: Annotated[
        str | None, typer.Option("--boundaries", help="Of the target, fused low to high; 2, n/2, n-3 by default.")
    ] = None,
    fc_norm: Annotated[
        bool, typer.Option("--fc-norm/--no-fc-norm", help="A norm for each fused state, as in EAGLE-3.1.")
    ] = True,
    norm_output: Annotated[
        bool, typer.Option("--norm-output/--no-norm-output", help="Feed back the normed output, as in EAGLE-3.1.")
    ] = False,
    norm_before_residual: Annotated[
        bool, typer.Option("--norm-before-residual/--no-norm-before-residual", help="The residual is normed too.")
    ] = False,
    share_lm_head: Annotated[
        bool,
        typer.Option(
            "--share-lm-head/--own-lm-head", help="The LM head stays the target's: smaller files, for this engine only."
        ),
    ] = False,
    layout: Annotated[str, typer.Option("--layout", help="Of the files: speculators or sglang.")] = "speculators",
) -> None:
    """Train an EAGLE-3 head: a small decoder on the target's own hidden states. For `method: eagle`."""
    from pilotfish.train.head import HeadOptions, HeadStudent

    _layout(layout)
    shape = HeadOptions(
        layers=layers,
        start_layers=_numbers("--start-layers", start_layers),
        boundaries=_numbers("--boundaries", boundaries) or None,
        fc_norm=fc_norm,
        norm_output=norm_output,
        norm_before_residual=norm_before_residual,
        share_lm_head=share_lm_head,
        layout=layout,  # type: ignore[arg-type]
    )
    _train(session, train_options, lambda files, ids: HeadStudent(files.config, files.weights, ids.ids, shape))


@train.command()
@training_flags()
def draft(
    session: "Session",
    train_options: "TrainOptions",
    start_layers: Annotated[
        str, typer.Option("--start-layers", help="The target's layers it is made of, with commas.")
    ] = "0,1,-2,-1",
) -> None:
    """Train a stand-alone draft model, cut out of the target. For `method: draft_model`."""
    from pilotfish.train.draft import DraftStudent

    numbers = _numbers("--start-layers", start_layers)

    def make(files: "ModelFiles", vocabulary: "DraftVocabulary") -> "Student":
        chosen = tuple(number + files.config.num_layers if number < 0 else number for number in numbers)
        return DraftStudent(files.config, files.weights, vocabulary.ids, chosen, files.tokenizer_path, files.eos_ids)

    _train(session, train_options, make)


@train.command("exit")
@training_flags()
def exit_(
    session: "Session",
    train_options: "TrainOptions",
    exit_layer: Annotated[int, typer.Option("--exit-layer", help="How many of the target's layers draft.")] = 6,
    rank: Annotated[int, typer.Option("--rank", help="Width of the adapter's correction.")] = 256,
) -> None:
    """Train an adapter that turns the target's first layers into a drafter. For `method: early_exit`."""
    from pilotfish.train.exit import ExitStudent

    _train(
        session,
        train_options,
        lambda files, ids: ExitStudent(files.config, files.weights, ids.ids, exit_layer, rank),
    )


@train.command()
def pool(
    data: Annotated[Path, typer.Argument(help="Directory of a data set that `pilotfish train data` made.")],
    output: Annotated[Path, typer.Argument(help="Directory to write the table into.")],
    model: options.ModelName = options.DEMO_MODEL,
    orders: Annotated[str, typer.Option("--orders", help="Context lengths, with commas.")] = "1,2,3,4",
    max_bytes: Annotated[int, typer.Option("--max-bytes", help="Size of the file at most, about.")] = 8_000_000,
    min_count: Annotated[int, typer.Option("--min-count", help="Contexts seen less often are left out.")] = 1,
    sizes: Annotated[int, typer.Option("--sizes", help="Largest draft to report on held-out text, in nodes.")] = 8,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Make a table of what the target says after each few tokens. For `method: lookup`; needs no training."""
    from pilotfish.bench.provenance import provenance
    from pilotfish.train.pool_session import make_pool

    result = make_pool(
        model,
        data,
        output,
        orders=_numbers("--orders", orders),
        max_bytes=max_bytes,
        min_count=min_count,
        sizes=sizes,
        origin=provenance(0),
    )
    if as_json:
        print(json.dumps(result))
        return
    rounds = " ".join(f"{value:.3f}" for value in result["tokens_per_round"])
    print(
        f"{output}: {sum(result['entries'].values()):,} entries, {result['file_bytes'] / 1e6:.1f} MB; tokens per round "
        f"on held-out text with trees of 1 to {sizes} tokens: {rounds}"
    )


def convert(
    source: Annotated[Path, typer.Argument(help="Directory of an EAGLE-3 head, in either layout.")],
    output: Annotated[Path, typer.Argument(help="Directory to write; must not be there yet.")],
    layout: Annotated[str, typer.Option("--layout", help="To write: speculators or sglang.")],
) -> None:
    """Write an EAGLE-3 head in the other published layout. Every tensor keeps its bits."""
    from pilotfish.models.eagle_writing import convert_eagle_head

    _layout(layout)
    convert_eagle_head(source, output, layout)  # type: ignore[arg-type]
    print(f"{output}: written in the layout of {layout}")


def _train(
    session: "Session",
    train_options: "TrainOptions",
    make: "Callable[[ModelFiles, DraftVocabulary], Student]",
) -> None:
    from pilotfish.cli.train_view import plot, print_outcome, training_view
    from pilotfish.train.checkpoint import RunDirectory
    from pilotfish.train.session import train_drafter

    with training_view(train_options.steps) as show:
        outcome = train_drafter(session, train_options, make, listener=show)
    if outcome is not None:
        plot(RunDirectory(session.output).records(), session.output / "training.svg")
        print_outcome(outcome, session.output)


def _layout(name: str) -> None:
    from pilotfish.models.eagle_writing import LAYOUTS

    if name not in LAYOUTS:
        raise InvalidInputError(f"--layout {name!r}: expected one of {', '.join(LAYOUTS)}")


def _numbers(flag: str, text: str | None) -> tuple[int, ...]:
    try:
        return () if text is None else tuple(int(part) for part in text.split(","))
    except ValueError:
        raise InvalidInputError(f"{flag} {text!r}: expected whole numbers with commas between") from None
