"""Helpers of the scheduler's tests: small paged engines, mixed requests, and what must be equal whatever the load."""

import random

from pilotfish.drafters.draft_model import DraftModelDrafter
from pilotfish.drafters.early_exit import EarlyExitDrafter
from pilotfish.drafters.lookup import LookupDrafter
from pilotfish.drafters.ngram import NgramDrafter
from pilotfish.drafters.recycle import RecycleDrafter
from pilotfish.drafters.suffix import SuffixDrafter
from pilotfish.engine.draft_policy import DraftPolicy
from pilotfish.engine.engine import Engine
from pilotfish.engine.pass_time import PassTime
from pilotfish.models.native_executor import NativeExecutor
from pilotfish.sampling.params import SamplingParams
from tests.engine.text_engine import EOS, GRAMMARS, VOCAB, decode, decode_all, encode
from tests.engine.tiny import tiny_config
from tests.models.memory_weights import MemoryWeights, random_weights

CONTEXT = 512
PAGE = 32
CONFIG = tiny_config(vocab_size=VOCAB, context_length=CONTEXT)


def paged_target(pages, seed=0, spread=None):
    weights = random_weights(CONFIG)
    if spread is not None:
        noise = random_weights(CONFIG, seed=seed, spread=spread)
        weights = MemoryWeights(
            {
                name: tensor + (noise.tensors[name] if "norm" not in name else 0.0)
                for name, tensor in weights.tensors.items()
            }
        )
    return NativeExecutor(CONFIG, weights, threads=1, kv_cache_tokens=pages * PAGE)


def make_drafter(kind, target):
    """A drafter of each kind; "auto" has several and measures itself."""
    match kind:
        case None:
            return None
        case "ngram":
            return NgramDrafter(1, 3)
        case "suffix":
            return SuffixDrafter(2)
        case "lookup":
            return LookupDrafter()
        case "recycle":
            return RecycleDrafter(2)
        case "early_exit":
            return EarlyExitDrafter(target, 1)
        case "draft_model":
            return DraftModelDrafter(paged_target(target.total_pages, seed=1, spread=0.03))
        case "auto":
            times = PassTime({1: 1e-3, 8: 1.1e-3, 64: 2e-3})
            return DraftPolicy([make_drafter("lookup", target), make_drafter("ngram", target)], times)
        case _:
            raise AssertionError(kind)


def engine_over(target, drafter=None, draft_len=4):
    return Engine(
        target,
        decode,
        VOCAB,
        [EOS],
        decode_all=decode_all,
        encode=encode,
        grammars=GRAMMARS,
        drafter=drafter,
        draft_len=draft_len,
    )


def mixed_params(rng: random.Random, longest: int = 40) -> SamplingParams:
    """Options of every kind, at random."""
    options = {"max_tokens": rng.randint(1, longest), "seed": rng.randrange(1000)}
    optional = {
        "temperature": [0, 0, 0.7, 1.2],
        "top_k": [8, 60],
        "top_p": [0.6, 0.95],
        "min_p": [0.05],
        "typical_p": [0.9],
        "repetition_penalty": [1.3],
        "presence_penalty": [0.8],
        "frequency_penalty": [0.6],
        "no_repeat_ngram_size": [3],
        "logit_bias": [{5: 4.0}, {70: -4.0}],
        "banned_token_ids": [[64, 65]],
        "bad_words": [["e"]],
        "structured_outputs": [{"regex": "([a-c]+ ?)+"}, {"grammar": 'start: ("ab" | "xyz")+'}],
        "stop": [["e"], [" t", "ab"]],
        "stop_token_ids": [[71]],
        "ignore_eos": [True],
        "skip_special_tokens": [False],
        "logprobs": [0, 3],
        "prompt_logprobs": [2],
    }
    for name in rng.sample(sorted(optional), rng.randint(0, 6)):
        options[name] = rng.choice(optional[name])
    return SamplingParams(**options)


def mixed_prompt(rng: random.Random, longest: int = 440) -> list[int]:
    """A prompt of 1 to `longest` tokens, many of them with a beginning that others have too."""
    length = min(int(longest ** rng.random()), longest)
    if rng.random() < 0.5:
        shared = [(place * 13 + 5) % 60 + 3 for place in range(length)]
        return [*shared[: max(1, length - 3)], *(rng.randrange(3, 60) for _ in range(min(3, length - 1)))]
    word = [rng.randrange(3, 60) for _ in range(rng.randint(1, 12))]
    return (word * (length // len(word) + 1))[:length]


def everything(request):
    """All that a caller may see of a request, but for how fast it came."""
    return {
        "ids": request.output,
        "text": request.ending.text,
        "streamed": "".join(request.pieces),
        "reason": request.finish_reason,
        "stopped by": request.ending.stopped_by,
        "logprobs": request.logprobs,
        "prompt logprobs": request.prompt_logprobs,
        "delivered": request.counters.delivered_tokens,
    }
