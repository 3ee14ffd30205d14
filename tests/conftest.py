"""Runs the whole suite with every shape annotation checked."""

from jaxtyping import install_import_hook

install_import_hook("pilotfish", "beartype.beartype")
