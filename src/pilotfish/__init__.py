"""Lossless speculative decoding: faster generation, exactly the tokens the target alone would have produced."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pilotfish.engine.config import SpeculativeConfig
    from pilotfish.engine.llm import LLM
    from pilotfish.engine.outputs import CompletionOutput, RequestMetrics, RequestOutput, StreamDelta
    from pilotfish.errors import PilotfishError
    from pilotfish.sampling.params import SamplingParams
    from pilotfish.terms import FinishReason

__version__ = "0.1.0"

_HOMES = {
    "CompletionOutput": "pilotfish.engine.outputs",
    "FinishReason": "pilotfish.terms",
    "LLM": "pilotfish.engine.llm",
    "PilotfishError": "pilotfish.errors",
    "RequestMetrics": "pilotfish.engine.outputs",
    "RequestOutput": "pilotfish.engine.outputs",
    "SamplingParams": "pilotfish.sampling.params",
    "SpeculativeConfig": "pilotfish.engine.config",
    "StreamDelta": "pilotfish.engine.outputs",
}

__all__ = [
    "LLM",
    "CompletionOutput",
    "FinishReason",
    "PilotfishError",
    "RequestMetrics",
    "RequestOutput",
    "SamplingParams",
    "SpeculativeConfig",
    "StreamDelta",
]


def __getattr__(name: str) -> Any:
    """Imports a public name when it is first used, so that importing the package costs nothing."""
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'pilotfish' has no attribute {name!r}")
