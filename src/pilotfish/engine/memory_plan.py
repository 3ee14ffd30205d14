"""How much the key-value caches may hold: bytes become pages, for the target and for what drafters keep beside it.

Owns the plan that is made when an engine starts, and its refusal with the numbers. Memory is taken page by page as it
is needed; the plan is its limit. Knows no requests.
"""

import re
from dataclasses import dataclass

from pilotfish.drafters.base import Drafter
from pilotfish.errors import CacheFullError, InvalidInputError
from pilotfish.models.base import PagedExecutor
from pilotfish.models.devices import free_memory

CONTEXTS = 8
"""Requests of the longest kind that fit at once, by default, where a share of the free memory allows it."""

SHARE = 0.5
"""Of the free memory, by default."""

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
_AMOUNT = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]i?)?b?\s*", re.IGNORECASE)


def parse_bytes(amount: int | str, option: str) -> int:
    """Bytes from a number or a text such as "2GiB" or "500MB".

    Raises:
        InvalidInputError: it is neither, or not positive; names the option.
    """
    found = _AMOUNT.fullmatch(amount) if isinstance(amount, str) else None
    if isinstance(amount, int) and not isinstance(amount, bool):
        value = amount
    elif found is not None:
        value = int(float(found[1]) * _UNITS[(found[2] or "").lower()])
    else:
        value = 0
    if value < 1:
        raise InvalidInputError(f"{option}={amount!r}: expected a number of bytes, or text such as '2GiB' or '500MB'")
    return value


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """What the caches of an engine may take.

    Attributes:
        pages: of the target's cache; those of draft models have as many.
        page_size: positions of a page.
        page_bytes: of one page, with what drafters keep for its positions.
    """

    pages: int
    page_size: int
    page_bytes: int

    @property
    def tokens(self) -> int:
        """Positions of all requests together."""
        return self.pages * self.page_size

    @property
    def memory(self) -> int:
        """Bytes, when every page is used."""
        return self.pages * self.page_bytes


def plan_memory(
    target: PagedExecutor,
    drafter: Drafter | None,
    draft_len: int,
    *,
    kv_cache_memory: int | None,
    max_model_len: int,
    device: str = "cpu",
) -> MemoryPlan:
    """The pages for a limit in bytes, or by default for up to eight of the longest requests in half of what is free.

    Args:
        draft_len: tokens drafted per path; a draft's rows, and the pending token's, need room beside the text.
        kv_cache_memory: bytes.
        max_model_len: tokens of the longest request, prompt and output.
        device: whose memory it is.

    Raises:
        CacheFullError: one request of `max_model_len` tokens does not fit.
    """
    size = target.page_size
    own = drafter.executors if drafter is not None else ()
    per_token = sum(-(-executor.page_bytes // executor.page_size) for executor in own)
    per_token += drafter.bytes_per_token if drafter is not None else 0
    page_bytes = target.page_bytes + size * per_token
    rows = 1 + draft_len * (drafter.nodes_per_depth if drafter is not None else 0)
    least = target.pages_for(max_model_len + rows)
    if kv_cache_memory is not None:
        available, source = kv_cache_memory, "kv_cache_memory"
        pages = kv_cache_memory // page_bytes
    else:
        available, source = free_memory(device), "the free memory"
        pages = min(max(int(available * SHARE) // page_bytes, least), CONTEXTS * least)
    if pages < least or pages * page_bytes > available:
        raise CacheFullError(
            f"{source} is {available / 2**20:.1f} MiB: one request of {max_model_len} tokens needs "
            f"{least * page_bytes / 2**20:.1f} MiB of key-value cache ({page_bytes / size / 2**10:.2f} KiB per token, "
            f"{rows} rows of a round included); give more kv_cache_memory, or a smaller max_model_len"
        )
    return MemoryPlan(pages, size, page_bytes)


def apply_plan(plan: MemoryPlan, target: PagedExecutor, drafter: Drafter | None) -> None:
    """Limits the caches to the plan, or to what is in use now if that is more."""
    for executor in (target, *(drafter.executors if drafter is not None else ())):
        executor.prefix_cache.clear()
        pages = -(-plan.tokens // executor.page_size)
        executor.limit_pages(max(pages, executor.total_pages - executor.free_pages))
