"""Prompts about documents, for data that `fit_lookup.py` fits on: much of what users ask is about a text they give.

    python benchmarks/document_prompts.py PROMPTS.jsonl [--count 160] [--seed 0]
    pilotfish train data DOCUMENTS --prompts PROMPTS.jsonl --max-tokens 1400 ...

The documents are passages of Python's own manual and of its modules' descriptions, which are wherever this runs; each
is summarised, rewritten, explained or asked about, in words of our own.
"""

import argparse
import ast
import json
import random
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from pydoc_data.topics import topics

SHORTEST, LONGEST = 300, 3200
"""Characters of a passage."""
TASKS = (
    "Summarize the following text.\n\n{}",
    "{}\n\nWrite a short summary of the text above.",
    "Read this passage and list its key points:\n\n{}",
    "Explain in simple words what this text says:\n\n{}",
    "Rewrite the following text so that it is easier to read.\n\n{}",
    "Document: {}\n\nQuestion: What is this document about, and what should its reader remember?",
    "Answer using the text below only. When is what it describes useful?\n\n{}",
    "Give the following text a title and turn it into a few bullet points.\n\n{}",
)


def documents() -> Iterator[str]:
    """Everything there is, whole."""
    yield from topics.values()
    for path in sorted(Path(sysconfig.get_path("stdlib")).rglob("*.py")):
        if "site-packages" in path.parts:
            continue
        try:
            text = ast.get_docstring(ast.parse(path.read_bytes()))
        except (SyntaxError, ValueError):
            continue  # files that are wrong on purpose, for tests
        if text:
            yield text


def passages(dice: random.Random) -> list[str]:
    """Runs of whole paragraphs."""
    found = []
    for document in documents():
        passage, wanted = "", dice.randrange(SHORTEST, LONGEST)
        for paragraph in document.split("\n\n"):
            if len(passage) + len(paragraph) > LONGEST:
                passage = ""
                continue
            passage = f"{passage}\n\n{paragraph}".strip()
            if len(passage) >= wanted:
                found.append(passage)
                passage, wanted = "", dice.randrange(SHORTEST, LONGEST)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument("--count", type=int, default=160)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    dice = random.Random(options.seed)
    prompts = [dice.choice(TASKS).format(passage) for passage in dice.sample(passages(dice), options.count)]
    options.output.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts), encoding="utf-8")


if __name__ == "__main__":
    main()
