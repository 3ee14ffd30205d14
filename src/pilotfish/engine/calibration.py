"""Times of a pass on this machine, measured once per machine, model and executor, and remembered in the user's cache.

Owns the file and its key. `models/pass_cost.py` measures; `pass_time.py` goes on learning while the engine runs.
"""

import hashlib
import json
import logging
from contextlib import suppress

from pilotfish import __version__
from pilotfish.engine.pass_time import PassTime
from pilotfish.models.base import Executor
from pilotfish.models.cache import cache_dir, write_atomically
from pilotfish.models.machine import Machine
from pilotfish.models.pass_cost import measure_pass
from pilotfish.models.roofline import executor_facts

ROWS = (1, 2, 3, 4, 5, 6, 8, 9, 12, 17, 24, 32)
MANY_ROWS = (64, 128)
"""Passes of large batches, measured apart: they take long, and a straight line goes on from them."""
CONTEXT = 256
SECONDS = 1.5
MANY_SECONDS = 0.5
"""Time limits of a calibration; what they allow, but at least one pass of each number of rows."""

logger = logging.getLogger(__name__)


def pass_time(executor: Executor, fingerprint: str, *, recalibrate: bool = False) -> PassTime:
    """The measured times of this executor's passes.

    Args:
        fingerprint: of the model's weights.
        recalibrate: measure again, whatever is remembered.
    """
    path = cache_dir() / "pass_times" / f"{_key(executor, fingerprint)}.json"
    if not recalibrate:
        with suppress(OSError, ValueError, AttributeError):
            remembered = {int(rows): float(seconds) for rows, seconds in json.loads(path.read_text()).items()}
            if remembered and all(seconds > 0 for seconds in remembered.values()):
                return PassTime(remembered)
    rows = [count for count in ROWS if count <= executor.config.context_length // 2]
    context = min(CONTEXT, executor.config.context_length - max(rows))
    costs = measure_pass(executor, rows, context=context, time_limit=SECONDS)
    many = [count for count in MANY_ROWS if count <= executor.config.context_length // 2]
    if many:
        context = min(CONTEXT, executor.config.context_length - max(many))
        costs += measure_pass(executor, many, context=context, time_limit=MANY_SECONDS)
    measured = {cost.rows: cost.seconds for cost in costs}
    logger.info("pass times measured: %s", ", ".join(f"{rows}: {s * 1e3:.2f} ms" for rows, s in measured.items()))
    with suppress(OSError):  # a cache that cannot be written costs a second at the next start, nothing else
        write_atomically(path, json.dumps(measured))
    return PassTime(measured)


def _key(executor: Executor, fingerprint: str) -> str:
    """Changes with everything that changes the time of a pass."""
    facts = (
        __version__,
        (ROWS, MANY_ROWS, CONTEXT),
        Machine.here().processor,
        fingerprint,
        executor.config.num_layers,
        executor_facts(executor),
    )
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:32]
