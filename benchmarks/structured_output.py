"""Structured output with the demo model: validity, equality with plain decoding, and what forced tokens bring.

Generates answers to ten JSON schemas with speculation off, on without forced tokens, and on; checks that all ids are
equal and that every answer that was not cut by `max_tokens` parses and validates; prints one JSON object.

    python benchmarks/structured_output.py --generations 200
"""

import argparse
import json
import time
from typing import Any

import jsonschema

from pilotfish import LLM, RequestOutput, SamplingParams
from pilotfish.sampling.grammar import GrammarConstraint

TEXT = {"type": "string", "maxLength": 24}
COUNT = {"type": "integer", "minimum": 1, "maximum": 240}
SCHEMAS: dict[str, dict[str, Any]] = {
    "person": {
        "name": TEXT,
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "email_address": TEXT,
        "is_employed": {"type": "boolean"},
    },
    "weather": {
        "location": TEXT,
        "temperature_celsius": {"type": "number", "minimum": -60, "maximum": 60},
        "conditions": {"enum": ["sunny", "partly cloudy", "raining", "snowing"]},
        "wind_direction": {"enum": ["north", "east", "south", "west"]},
    },
    "recipe": {
        "title": TEXT,
        "ingredients": {
            "type": "array",
            "minItems": 2,
            "maxItems": 3,
            "items": {
                "type": "object",
                "properties": {"ingredient": TEXT, "quantity_in_grams": COUNT},
                "required": ["ingredient", "quantity_in_grams"],
                "additionalProperties": False,
            },
        },
        "preparation_minutes": COUNT,
    },
    "sentiment": {
        "sentiment": {"enum": ["positive", "negative", "neutral"]},
        "confidence": {"type": "number", "minimum": 0, "maximum": 1},
        "explanation": TEXT,
    },
    "address": {
        "recipient": TEXT,
        "postal_address": {
            "type": "object",
            "properties": {"street_name": TEXT, "house_number": COUNT, "country_code": {"enum": ["DE", "FR", "JP"]}},
            "required": ["street_name", "house_number", "country_code"],
            "additionalProperties": False,
        },
    },
    "translation": {
        "source_language": {"const": "English"},
        "target_language": {"enum": ["français", "español", "日本語", "العربية"]},
        "translated_text": TEXT,
    },
    "event": {
        "event_type": {"const": "calendar_event"},
        "start_time": {"type": "string", "pattern": "^[0-2][0-9]:[0-5][0-9]$"},
        "duration_minutes": {"type": "integer", "minimum": 5, "maximum": 480},
        "participants": {"type": "array", "items": TEXT, "minItems": 1, "maxItems": 3},
    },
    "tool_call": {
        "function_name": {"enum": ["search_documents", "send_message", "create_reminder"]},
        "arguments": {
            "type": "object",
            "properties": {"query_string": TEXT, "maximum_results": {"type": "integer", "minimum": 1, "maximum": 50}},
            "required": ["query_string", "maximum_results"],
            "additionalProperties": False,
        },
    },
    "matrix": {
        "description": {"const": "coordinates in the plane"},
        "points": {
            "type": "array",
            "minItems": 2,
            "maxItems": 3,
            "items": {"type": "array", "items": COUNT, "minItems": 2, "maxItems": 2},
        },
    },
    "product": {
        "product_name": TEXT,
        "price_in_euros": {"type": "number", "minimum": 0, "maximum": 999},
        "availability": {"enum": ["in stock", "sold out", "preorder"]},
        "category_labels": {"type": "array", "items": {"enum": ["kitchen", "garden", "office"]}, "maxItems": 2},
    },
}  # fmt: skip
ON = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 2}


def closed(properties: dict[str, Any]) -> dict[str, Any]:
    """An object with exactly these properties."""
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def answers(llm: LLM, generations: int, batch: int, draft_len: int | None = None) -> list[tuple[str, RequestOutput]]:
    names = list(SCHEMAS)
    requests = []
    for number in range(generations):
        name = names[number % len(names)]
        params = SamplingParams(
            temperature=(0, 0.7, 1.0)[number // len(names) % 3],
            seed=number,
            max_tokens=120,
            structured_outputs={"json": closed(SCHEMAS[name])},
        )
        question = f"Make up one example of a {name.replace('_', ' ')} ({number}) and write it as JSON."
        requests.append((name, llm.tokenizer.chat([{"role": "user", "content": question}]), params))
    found = []
    for start in range(0, generations, batch):
        part = requests[start : start + batch]
        outputs = llm.generate(
            [prompt for _, prompt, _ in part], [params for *_, params in part], num_speculative_tokens=draft_len
        )
        found.extend(zip((name for name, *_ in part), outputs, strict=True))
    return found


def tokens_per_round(found: list[tuple[str, RequestOutput]]) -> float:
    outputs = [output.outputs[0] for _, output in found]
    return sum(len(output.token_ids) for output in outputs) / sum(output.metrics.rounds for output in outputs)


def validity(found: list[tuple[str, RequestOutput]]) -> dict[str, int]:
    counts = {"valid": 0, "cut by max_tokens": 0, "invalid": 0}
    for name, output in found:
        completion = output.outputs[0]
        if completion.finish_reason == "length":
            counts["cut by max_tokens"] += 1
            continue
        try:
            jsonschema.validate(json.loads(completion.text), closed(SCHEMAS[name]))
            counts["valid"] += 1
        except (ValueError, jsonschema.ValidationError):
            counts["invalid"] += 1
    return counts


def without_forced_tokens(llm: LLM, generations: int, batch: int) -> list[tuple[str, RequestOutput]]:
    """Speculation as it would be if the grammar forced nothing; illegal drafts are cut all the same."""
    forced = GrammarConstraint.forced
    GrammarConstraint.forced = lambda self, prefix: []  # type: ignore[method-assign]
    try:
        return answers(llm, generations, batch)
    finally:
        GrammarConstraint.forced = forced  # type: ignore[method-assign]


def measure(model: str, generations: int, batch: int) -> dict[str, Any]:
    llm = LLM(model, speculative_config=ON)
    results, seconds = {}, {}
    for name, run in {
        "plain": lambda: answers(llm, generations, batch, draft_len=0),
        "without forced tokens": lambda: without_forced_tokens(llm, generations, batch),
        "with forced tokens": lambda: answers(llm, generations, batch),
    }.items():
        start = time.perf_counter()
        results[name] = run()
        seconds[name] = round(time.perf_counter() - start, 2)
    ids = {name: [output.outputs[0].token_ids for _, output in found] for name, found in results.items()}
    per_round = {name: round(tokens_per_round(found), 3) for name, found in results.items()}
    return {
        "model": model,
        "generations": generations,
        "batch": batch,
        "validity": validity(results["plain"]),
        "identical": ids["plain"] == ids["with forced tokens"] == ids["without forced tokens"],
        "tokens_per_round": per_round,
        "forced_tokens_ratio": round(per_round["with forced tokens"] / per_round["without forced tokens"], 3),
        "seconds": seconds,
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--generations", type=int, default=200)
    parser.add_argument("--batch", type=int, default=10)
    options = parser.parse_args()
    print(json.dumps(measure(options.model, options.generations, options.batch), indent=2))
