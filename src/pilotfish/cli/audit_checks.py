"""Which options of `pilotfish audit` mean something together: nothing that was typed is ignored.

Owns the combinations; ranges are checked where values are used. Level, seed and --json go with everything.
"""

from collections.abc import Collection
from pathlib import Path
from typing import Any

from pilotfish.errors import InvalidInputError

_MODEL = frozenset({"model", "executor", "weights", "threads"})
_SERVER = frozenset({"base_url", "reference_url", "endpoint_model", "api_key_env", "tokens", "max_requests", "prompt"})


def given(**values: Any) -> frozenset[str]:
    """Options that were typed on the command line; those that were not are `None`."""
    return frozenset(name for name, value in values.items() if value is not None)


def refuse_idle(typed: Collection[str], useful: Collection[str], when: str) -> None:
    """Refuses options that would do nothing.

    Raises:
        InvalidInputError: names the first of them.
    """
    for name in sorted(set(typed) - set(useful)):
        flag = "--" + name.replace("_", "-")
        raise InvalidInputError(f"{flag} does nothing {when}: expected a command without it")


def check_self_test(typed: Collection[str]) -> None:
    """The self-test has a size of its own, needs no model, and writes no page."""
    refuse_idle(typed, {"repeat"}, "with --self-test, which shows known-bad decoders to the levels meant for them")


def check_endpoint(typed: Collection[str]) -> None:
    """An audit of a server."""
    with_reference = "reference_url" in typed
    useful = _SERVER | {"html"} | (frozenset() if with_reference else _MODEL)
    when = "beside --reference-url, which is the reference" if with_reference else "in an audit of a server"
    refuse_idle(set(typed) & _MODEL, useful, when)
    refuse_idle(typed, useful | _MODEL, "in an audit of a server")


def check_local(typed: Collection[str], levels: Collection[str], model: str | None) -> None:
    """An audit of this package's own decoder."""
    refuse_idle(set(typed) & _SERVER, (), "without --base-url, the server under audit")
    refuse_idle(set(typed) & {"repeat"}, (), "without --self-test")
    useful = frozenset({"size", "html"})
    if {"law", "theory"} & set(levels):
        useful |= {"workers"}
    if "identity" in levels:
        useful |= {"model"} if model == "none" else _MODEL
        refuse_idle(set(typed) & _MODEL, useful, "with --model none")
    refuse_idle(typed, useful, f"at the levels {', '.join(sorted(levels))}")


def check_writable(page: Path) -> None:
    """Refuses a report that could not be written, before the audit takes its minutes.

    Raises:
        InvalidInputError: says why.
    """
    existed = page.exists()
    try:
        with page.open("a"):
            pass
        if not existed:
            page.unlink()
    except OSError as error:
        raise InvalidInputError(f"--html: cannot write {page}: {error}") from error
