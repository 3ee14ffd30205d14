"""`python -m pilotfish.cli` is `pilotfish`."""

from pilotfish.cli import main

main()
