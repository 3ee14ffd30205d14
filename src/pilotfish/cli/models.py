"""`pilotfish models`: what the catalogue knows and what is cached."""

import sys
from typing import Annotated

import typer

models = typer.Typer(help="Fetch and list models.", no_args_is_help=True)


@models.command()
def pull(name: Annotated[str, typer.Argument(help="A name from `pilotfish models list`.")]) -> None:
    """Fetch a model of the catalogue into the user's cache, checksummed; does nothing if it is there."""
    import pilotfish.models.catalogue as catalogue

    path = catalogue.pull(name, progress=lambda message: print(message, file=sys.stderr))
    print(path)


@models.command("list")
def list_models() -> None:
    """Show the catalogue."""
    import pilotfish.models.catalogue as catalogue

    # Plain lines, however wide the terminal: a path is there to be copied.
    for entry in catalogue.listing():
        where = f"cached at {entry.path}" if entry.cached else "not cached"
        print(f"{entry.name}  {entry.size / 1e6:.0f} MB  {entry.source}  {where}")
