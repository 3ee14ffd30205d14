"""From logits to laws and choices: options, one documented order, and noise by position.

Makes all laws, target's and drafter's alike, each row with its own prefix. Knows no rule and no model.
"""

from pilotfish.sampling.noise import Stream, derived_seed
from pilotfish.sampling.params import SamplingParams, fresh_seed
from pilotfish.sampling.pipeline import Pipeline, Step, build_pipeline
from pilotfish.sampling.prefix import Prefix
from pilotfish.sampling.sampler import Sampler
from pilotfish.sampling.structured import StructuredOutputs

__all__ = [
    "Pipeline",
    "Prefix",
    "Sampler",
    "SamplingParams",
    "Step",
    "Stream",
    "StructuredOutputs",
    "build_pipeline",
    "derived_seed",
    "fresh_seed",
]
