"""From a `SpeculativeConfig` to what an engine needs: a drafter and a draft length.

Owns the assembly. Ranges are checked in `config.py`, kinds of drafters are built in `drafters/factory.py`.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from pilotfish.drafters.base import Drafter
from pilotfish.drafters.factory import build_drafter
from pilotfish.drafters.shipped import shipped_drafters
from pilotfish.engine.calibration import pass_time
from pilotfish.engine.config import AUTO, SpeculativeConfig
from pilotfish.engine.draft_policy import LONGEST, DraftPolicy
from pilotfish.models.loading import Model


def build_speculation(
    config: SpeculativeConfig | None, target: Model, load: Callable[[str | Path], Model], *, recalibrate: bool = False
) -> tuple[Drafter | None, int]:
    """The drafter, and the most tokens it is asked for per round; nothing for plain decoding.

    Args:
        load: loads a draft model by name.
        recalibrate: measure the times of a pass again, where they decide about the length.

    Raises:
        SpeculativeConfigError, ModelError, TokenizerMismatchError: as `build_drafter`.
    """
    if config is None or config.num_speculative_tokens == 0:
        return None, 0
    members = config.drafters or (config,)
    if config.shipped:
        # Two early exits would run their tokens in the same places of the target's cache; the caller's own goes first.
        exits = any(member.method == "early_exit" for member in members)
        found = [
            own for own in shipped_drafters(target.files.fingerprint) if not (exits and own["method"] == "early_exit")
        ]
        # A table says more to the drafter that weighs it against the text than as a drafter of its own.
        for own in [own for own in found if own["method"] == "table"]:
            if any(member.method == "lookup" and member.model is None for member in members):
                members = tuple(
                    replace(member, model=own["model"])
                    if member.method == "lookup" and member.model is None
                    else member
                    for member in members
                )
                found.remove(own)
        members += tuple(SpeculativeConfig.from_mapping({**own, "verification": config.verification}) for own in found)
    drafters = [build_drafter(str(member.method), member, target, load) for member in members]
    draft_len = LONGEST if config.num_speculative_tokens == AUTO else int(config.num_speculative_tokens)
    if not config.is_adaptive:
        return drafters[0], draft_len
    times = pass_time(target.executor, target.files.fingerprint, recalibrate=recalibrate)
    return DraftPolicy(drafters, times), draft_len
