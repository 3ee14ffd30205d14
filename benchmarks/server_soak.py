"""A server under mixed load: every answer that comes whole equals the one its request gets alone; nothing leaks.

Starts `pilotfish serve`, asks it for `--requests` completions of many kinds, `--concurrency` at a time: prompts of 1 to
`--longest-prompt` tokens, all sampling options, streams and whole answers, a third hung up on at random, a tenth
malformed. Each answer is compared, byte for byte, with the one that the same model gave before, by itself and without
speculation. With `--minutes` the same requests are asked again and again in changing order, and the server's resident
memory is noted. With `--flood` that many requests are sent at once, at the end. Prints one JSON object; exit code 1 if
anything was not as it should be.

    python benchmarks/server_soak.py --output soak.json
    python benchmarks/server_soak.py --minutes 30 --flood 1000 --serve-flags "--max-waiting 64"
"""

import argparse
import asyncio
import json
import random
import re
import shlex
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from pilotfish import LLM, SamplingParams
from pilotfish.bench.provenance import provenance

CANCELLED, MALFORMED = 1 / 3, 1 / 10
KEY = "soak"
TEXT = (
    "The little fish swims ahead of the shark and tells it where to go. The shark looks once, keeps what it agrees "
    "with, and turns where it does not. def next_token(logits): return max(range(len(logits)), key=logits.__getitem__) "
    "1, 2, 3, 5, 8, 13, 21, 34; naïve façades in Größe 42, 日本語 and ☃. "
)
OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"temperature": 0.0},
    {"temperature": 0.0, "logprobs": 3},
    {"top_k": 20, "top_p": 0.9},
    {"min_p": 0.05, "temperature": 1.3},
    {"typical_p": 0.8, "logprobs": 0, "logprobs_mode": "processed_logprobs"},
    {"repetition_penalty": 1.2, "presence_penalty": 0.3, "frequency_penalty": -0.2},
    {"no_repeat_ngram_size": 3, "bad_words": ["shark"]},
    {"logit_bias": {"260": 3.0}, "banned_token_ids": [284]},
    {"stop": [".", "\n"], "min_tokens": 4},
    {"structured_outputs": {"regex": "[A-Za-z ,]{10,60}\\."}},
    {"structured_outputs": {"json": {"type": "object", "properties": {"n": {"type": "integer", "maximum": 999}}}}},
    {"ignore_eos": True, "include_stop_str_in_output": True, "stop": "e"},
)
MALFORMED_BODIES: tuple[tuple[bytes, int], ...] = (
    (b"{", 400),
    (b"\xff\xff", 400),
    (b"[" * 200_000, 400),
    (b'{"prompt": "x", "tempratur": 1}', 400),
    (b'{"prompt": "x", "temperature": -1}', 400),
    (b'{"prompt": "x", "stop_token_ids": [99999999]}', 400),
    (b'{"prompt": "x", "structured_outputs": {"regex": "("}}', 400),
    (b'{"prompt": "x", "model": "another"}', 404),
    (b'{"prompt": "\\ud800"}', 400),
    (b'{"prompt": "' + b"x" * 5_000_000 + b'"}', 413),
    (json.dumps({"prompt": [5] * 100_000}).encode(), 400),
)


@dataclass(frozen=True, slots=True)
class Case:
    """A request and the answer it must get."""

    body: dict[str, Any]
    text: str
    tokens: int
    finish_reason: str
    logprobs: list[float] | None


@dataclass(slots=True)
class Tally:
    """What came of all requests."""

    outcomes: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    delivered: int = 0
    """Tokens of whole answers."""

    def fail(self, message: str) -> None:
        self.outcomes["failed"] += 1
        if len(self.failures) < 20:
            self.failures.append(message[:2000])


def cases(llm: LLM, arguments: argparse.Namespace) -> list[Case]:
    """Requests with the answers that they get alone."""
    chance = random.Random(arguments.seed)
    known = llm.tokenizer.encode(TEXT * (1 + arguments.longest_prompt // 40))
    found = []
    for number in range(arguments.requests):
        # Log-uniform, so that short prompts are as common as they are in life, and the longest is among them.
        length = arguments.longest_prompt if number == 0 else round(arguments.longest_prompt ** chance.random())
        start = chance.randrange(len(known) - length + 1)
        options = {"seed": chance.randrange(2**53), "max_tokens": chance.randint(4, arguments.most_tokens)}
        options |= chance.choice(OPTIONS)
        prompt = known[start : start + length]
        output = llm.generate(prompt, SamplingParams(**options))[0].outputs[0]
        logprobs = None
        if output.logprobs is not None:
            logprobs = [own[token].logprob for own, token in zip(output.logprobs, output.token_ids, strict=True)]
        body = {"prompt": prompt, **options}
        found.append(Case(body, output.text, len(output.token_ids), output.finish_reason.value, logprobs))
        sys.stderr.write(f"\ralone: {number + 1}/{arguments.requests}")
    sys.stderr.write("\n")
    return found


class Server:
    """`pilotfish serve` on a free port."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        command = [sys.executable, "-m", "pilotfish.cli", "serve", arguments.model, "--port", "0", "--api-key", KEY]
        command += ["--weights", arguments.weights]
        if arguments.threads is not None:
            command += ["--threads", str(arguments.threads)]
        self.command = [*command, *shlex.split(arguments.serve_flags)]
        self.process = subprocess.Popen(self.command, stderr=subprocess.PIPE, text=True)
        self.trouble: list[str] = []
        assert self.process.stderr is not None, "a pipe"
        for line in self.process.stderr:
            if found := re.search(r" on (http://\S+)/v1", line):
                self.url = found[1]
                break
            self.trouble.append(line)
        else:
            raise SystemExit("the server did not start:\n" + "".join(self.trouble))
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        """Keeps what is no access log: warnings and errors."""
        assert self.process.stderr is not None, "a pipe"
        self.trouble.extend(line for line in self.process.stderr if not line.startswith("{"))

    def resident_bytes(self) -> int:
        status = Path(f"/proc/{self.process.pid}/status").read_text(encoding="ascii")
        return 1024 * int(re.search(r"VmRSS:\s+(\d+)", status)[1])  # type: ignore[index]


async def ask(client: httpx.AsyncClient, case: Case, chance: random.Random, tally: Tally, *, may_leave: bool) -> None:
    """Asks one of the cases, in one of the ways there are, and judges the answer."""
    body = dict(case.body)
    if chance.random() < 0.25:
        body["speculative"] = {"num_speculative_tokens": chance.randint(0, 4)}
    stream = chance.random() < 0.5
    leaves = may_leave and chance.random() < CANCELLED
    work = asyncio.ensure_future((_streamed if stream else _whole)(client, body))
    if leaves:
        await asyncio.wait([work], timeout=chance.random() * 3)
        if not work.done():
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)
            tally.outcomes["left"] += 1
            return
    try:
        status, text, reason, tokens, logprobs = await work
    except httpx.HTTPError as error:
        tally.fail(f"{type(error).__name__} {error}: {_shown(body)}")
        return
    if status == 429:
        tally.outcomes["queue full"] += 1
        return
    got, expected = (text, reason, tokens, logprobs), (case.text, case.finish_reason, case.tokens, case.logprobs)
    if status != 200 or got != expected:
        tally.fail(f"status {status}, got {got}, alone {expected}: {_shown(body)}")
        return
    tally.outcomes["streamed" if stream else "whole"] += 1
    tally.delivered += tokens


Answer = tuple[int, str, str | None, int, list[float] | None]


async def _whole(client: httpx.AsyncClient, body: dict[str, Any]) -> Answer:
    response = await client.post("/v1/completions", json=body)
    if response.status_code != 200:
        return response.status_code, response.text, None, 0, None
    found = response.json()
    choice = found["choices"][0]
    logprobs = choice["logprobs"] and choice["logprobs"]["token_logprobs"]
    return 200, choice["text"], choice["finish_reason"], found["usage"]["completion_tokens"], logprobs


async def _streamed(client: httpx.AsyncClient, body: dict[str, Any]) -> Answer:
    own = {**body, "stream": True, "stream_options": {"include_usage": True}}
    text, reason, tokens, logprobs = "", None, 0, None
    async with client.stream("POST", "/v1/completions", json=own) as response:
        if response.status_code != 200:
            return response.status_code, (await response.aread()).decode(), None, 0, None
        async for line in response.aiter_lines():
            if not line.startswith("data: ") or line == "data: [DONE]":
                continue
            event = json.loads(line[6:])
            if "error" in event:
                return 200, str(event["error"]), "error", 0, None
            for choice in event["choices"]:
                text, reason = text + choice["text"], choice["finish_reason"] or reason
                if choice["logprobs"]:
                    logprobs = (logprobs or []) + choice["logprobs"]["token_logprobs"]
            tokens = event.get("usage", {}).get("completion_tokens", tokens)
    return 200, text, reason, tokens, logprobs


async def ask_malformed(client: httpx.AsyncClient, chance: random.Random, tally: Tally) -> None:
    body, status = chance.choice(MALFORMED_BODIES)
    response = await client.post("/v1/completions", content=body, headers={"content-type": "application/json"})
    if response.status_code == status and set(response.json()) == {"error"}:
        tally.outcomes["malformed, refused"] += 1
    else:
        tally.fail(f"malformed: status {response.status_code}, expected {status}: {body[:80]!r}")


def _shown(body: dict[str, Any]) -> str:
    return json.dumps({**body, "prompt": f"{len(body['prompt'])} tokens"})


async def one_pass(
    client: httpx.AsyncClient, known: list[Case], chance: random.Random, tally: Tally, at_once: int
) -> None:
    """Every case once, in some order, and malformed requests among them."""
    jobs: list[Case | None] = list(known)
    jobs += [None] * round(len(known) * MALFORMED / (1 - MALFORMED))
    chance.shuffle(jobs)
    places = asyncio.Semaphore(at_once)

    async def run(case: Case | None) -> None:
        async with places:
            if case is None:
                await ask_malformed(client, chance, tally)
            else:
                await ask(client, case, chance, tally, may_leave=True)

    await asyncio.gather(*map(run, jobs))


async def flood(client: httpx.AsyncClient, known: list[Case], chance: random.Random, tally: Tally, count: int) -> None:
    """That many requests at the same time; each is answered as alone, or refused because the queue is full."""
    await asyncio.gather(*(ask(client, chance.choice(known), chance, tally, may_leave=False) for _ in range(count)))


async def figures(client: httpx.AsyncClient) -> dict[str, float]:
    """Counters and gauges of `/metrics`."""
    lines = (await client.get("/metrics")).text.splitlines()
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))}


async def idle_figures(client: httpx.AsyncClient, tally: Tally) -> dict[str, float]:
    """The same, once nothing runs or waits; that this does not come about is a failure."""
    for _ in range(200):
        found = await figures(client)
        if not found["pilotfish:num_requests_running"] and not found["pilotfish:num_requests_waiting"]:
            return found
        await asyncio.sleep(0.1)
    tally.fail("requests run or wait although nobody is there")
    return found


def check_counters(before: dict[str, float], after: dict[str, float], tally: Tally) -> None:
    """Counters never go down, agree with each other, and hold at least what was delivered whole."""
    for name, value in before.items():
        if re.search(r"_total|_bucket|_count|_sum", name) and after.get(name, 0) < value:
            tally.fail(f"{name} went down from {value} to {after.get(name)}")
    made, rounds, accepted = (
        after[f"pilotfish:{name}_total"]
        for name in ("generation_tokens", "spec_decode_num_drafts", "spec_decode_num_accepted_tokens")
    )
    if not accepted <= made <= rounds + accepted:  # a round that ends within its draft has no token of the target's own
        tally.fail(f"{made} tokens from {rounds} rounds with {accepted} accepted")
    if made < tally.delivered:
        tally.fail(f"{tally.delivered} tokens came, the server counts {made}")
    held = after['pilotfish:kv_cache_pages{state="used"}']
    if held:
        tally.fail(f"{held} pages are held, and nobody is there to hold them")


async def soak(server: Server, known: list[Case], arguments: argparse.Namespace) -> dict[str, Any]:
    tally = Tally()
    chance = random.Random(arguments.seed + 1)
    memory: list[tuple[float, int]] = []
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=arguments.concurrency)
    headers = {"authorization": f"Bearer {KEY}"}
    began = time.monotonic()
    passes = 0
    async with httpx.AsyncClient(base_url=server.url, headers=headers, timeout=600, limits=limits) as client:
        before = await figures(client)
        while passes == 0 or time.monotonic() - began < 60 * arguments.minutes:
            await one_pass(client, known, chance, tally, arguments.concurrency)
            passes += 1
            after = await idle_figures(client, tally)
            check_counters(before, after, tally)
            before = after
            memory.append((round(time.monotonic() - began, 1), server.resident_bytes()))
            sys.stderr.write(f"\rpass {passes}: {dict(tally.outcomes)}, {memory[-1][1] / 2**20:.0f} MiB   ")
        if arguments.flood:
            await flood(client, known, chance, tally, arguments.flood)
            after = await idle_figures(client, tally)
            check_counters(before, after, tally)
    sys.stderr.write("\n")
    server.process.terminate()
    code = server.process.wait(60)
    if code != 0:
        tally.fail(f"exit code {code} after SIGTERM")
    if server.trouble:
        tally.fail("on standard error: " + "".join(server.trouble))
    sizes = [size for _, size in memory]
    quarter = max(1, len(sizes) // 4)
    return {
        "outcomes": dict(tally.outcomes),
        "failures": tally.failures,
        "passes": passes,
        "seconds": round(time.monotonic() - began, 1),
        "counters": {name: value for name, value in after.items() if "_bucket" not in name and "_created" not in name},
        "resident_bytes": memory,
        # The first pass fills caches of the allocator and of grammars.
        "resident_growth_bytes": statistics.median(sizes[-quarter:])
        - statistics.median(sizes[1 : 1 + quarter] or sizes),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--weights", default="auto")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--concurrency", type=int, default=32)
    parser.add_argument("--longest-prompt", type=int, default=2000, help="tokens")
    parser.add_argument("--most-tokens", type=int, default=64, help="of an answer")
    parser.add_argument("--minutes", type=float, default=0.0, help="ask again and again for that long")
    parser.add_argument("--flood", type=int, default=0, help="requests sent at once, at the end")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--serve-flags", default="", help="further flags of pilotfish serve, as one text")
    parser.add_argument("--output", type=Path, help="write the report there too")
    arguments = parser.parse_args()
    llm = LLM(arguments.model, speculative_config=None, weights=arguments.weights, threads=arguments.threads)
    known = cases(llm, arguments)
    del llm
    server = Server(arguments)
    try:
        found = asyncio.run(soak(server, known, arguments))
    finally:
        if server.process.poll() is None:
            server.process.kill()
            server.process.wait()
    report = {**provenance(arguments.seed), "server": server.command[3:], **found}
    text = json.dumps(report, indent=1)
    if arguments.output is not None:
        arguments.output.write_text(text, encoding="utf-8")
    print(text)
    sys.exit(1 if found["failures"] else 0)


if __name__ == "__main__":
    main()
