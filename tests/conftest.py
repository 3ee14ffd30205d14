"""Runs the whole suite with every shape annotation checked."""

import torch
from jaxtyping import install_import_hook

install_import_hook("pilotfish", "beartype.beartype")

# Tiny models gain nothing from threads, and lose much where other processes want the same cores.
torch.set_num_threads(1)
