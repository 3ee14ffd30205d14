"""Tables that scripts put into pages, in the place that is marked for them."""

from pathlib import Path


def put_into(page: Path, name: str, text: str) -> None:
    """Replaces what stands between `<!-- name: begin -->` and `<!-- name: end -->`."""
    begin, end = (f"<!-- {name}: {mark} -->" for mark in ("begin", "end"))
    before, found, rest = page.read_text(encoding="utf-8").partition(begin)
    _, ended, after = rest.partition(end)
    if not found or not ended:
        raise SystemExit(f"{page} has no {begin} and {end}: expected the place for the tables between them")
    page.write_text(f"{before}{begin}\n\n{text.strip()}\n\n{end}{after}", encoding="utf-8")
