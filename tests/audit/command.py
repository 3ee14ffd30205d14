"""Runs `pilotfish audit` as a user does: a process of its own, in which annotations are not checked at run time.

That makes a statistical test ten times as fast as it would be within the suite.
"""

import subprocess
import sys


def run_audit(*arguments):
    """The finished process."""
    command = [sys.executable, "-W", "error", "-m", "pilotfish.cli", "audit", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=1800, check=False)
