"""Back-off tables from a data set: what is counted, what is worth its bytes, what it gives."""

from collections import Counter

import numpy as np
import pytest

from pilotfish.drafters.backoff import load_table
from pilotfish.engine.llm import LLM
from pilotfish.errors import DataSetError, InvalidInputError
from pilotfish.sampling.params import SamplingParams
from pilotfish.train.pool import CONTEXT_BYTES, SUCCESSOR_BYTES, Text, build_table, table_tokens_per_round
from pilotfish.train.pool_session import make_pool
from tests.drafters.common import foretold
from tests.train.tiny_data import planted_target, write_data


def text(tokens, prompt=1, law=None):
    return Text(np.array(tokens), np.arange(len(tokens)) >= prompt, law)


def entries(table):
    return sum(len(order) for order in table.orders.values())


def test_successors_are_the_most_frequent_ones_of_answers():
    texts = [text([1, 2, 3, 4]), text([1, 2, 3, 5]), text([9, 2, 3, 5]), text([9, 2, 7])]
    table = build_table(texts, orders=(1, 2), max_bytes=10_000)
    assert foretold(table, [2]) == ([3, 7], [0.75, 0.25])
    assert foretold(table, [1, 2]) == ([3], [1.0])
    assert foretold(table, [3]) == ([5, 4], [pytest.approx(2 / 3), pytest.approx(1 / 3)])
    assert foretold(table, [7]) is None
    assert table.orders[1].seen[table.orders[1].find([2])] == 2, "four times"
    only_answers = build_table([text([1, 2, 3, 4], prompt=3)], orders=(1,), max_bytes=10_000)
    assert foretold(only_answers, [2]) is None, "the prompt is not foretold"
    assert foretold(only_answers, [3]) == ([4], [1.0])


def test_laws_say_what_else_could_have_come():
    ids = np.array([[2, 8, 9], [3, 9, 8], [3, 7, 9]], dtype=np.int32)
    probs = np.array([[0.9, 0.1, 0.0], [0.5, 0.25, 0.125], [0.75, 0.125, 0.0625]], dtype=np.float32)
    table = build_table([text([1, 2, 2, 3], law=(ids, probs))], orders=(1, 2), max_bytes=10_000)
    assert foretold(table, [1]) == ([2, 8], [pytest.approx(0.9), pytest.approx(0.1)])
    assert foretold(table, [2, 2]) == ([3, 7, 9], [0.75, 0.125, 0.0625])
    order = table.orders[1]
    assert order.successors_of(order.find([2])) == ([3, 9, 7, 8], [0.625, 0.15625, 0.0625, 0.0625])


def test_entry_that_says_what_the_shorter_context_says_is_left_out():
    same = [text([1, 2, 3]), text([4, 2, 3]), text([5, 6, 7])]
    table = build_table(same, orders=(1, 2), max_bytes=10_000)
    assert len(table.orders[2]) == 0
    assert foretold(table, [1, 2]) == ([3], [1.0])


def test_parts_of_a_large_count_are_the_whole(monkeypatch):
    generator = np.random.default_rng(0)
    texts = [text(generator.integers(0, 30, size=50)) for _ in range(20)]
    whole = build_table(texts, orders=(1, 2), max_bytes=1 << 20)
    monkeypatch.setattr("pilotfish.train.pool.BATCH", 7)
    parts = build_table(texts, orders=(1, 2), max_bytes=1 << 20)
    for length, order in whole.orders.items():
        for name in ("keys", "starts", "successors", "shares", "seen"):
            assert (getattr(order, name) == getattr(parts.orders[length], name)).all()


def test_random_texts_are_counted_as_by_hand():
    random = np.random.default_rng(0)
    texts = [text(random.integers(0, 9, size=40).tolist(), prompt=5) for _ in range(30)]
    table = build_table(texts, orders=(1, 3), max_bytes=10**7, min_count=2)
    counts = Counter()
    for each in texts:
        for place in np.flatnonzero(each.chosen):
            counts[(tuple(each.tokens[place - 1 : place].tolist()), int(each.tokens[place]))] += 1
    for token in range(9):
        own = {following: count for (context, following), count in counts.items() if context == (token,)}
        best = min(own, key=lambda following: (-own[following], following))
        found, shares = foretold(table, [token])
        assert found[0] == best
        assert shares[0] == pytest.approx(own[best] / sum(own.values()), rel=1e-3)


def test_size_is_bounded_and_the_worthiest_entries_stay():
    random = np.random.default_rng(0)
    frequent = [text([100, 101, 102, 103] * 10) for _ in range(5)]
    rare = [text(random.integers(0, 90, size=60).tolist()) for _ in range(30)]
    whole = build_table([*frequent, *rare], orders=(1, 2, 3), max_bytes=10**7, min_count=1)
    small = build_table(
        [*frequent, *rare], orders=(1, 2, 3), max_bytes=20 * (CONTEXT_BYTES + SUCCESSOR_BYTES), min_count=1
    )
    assert entries(whole) > 1000
    assert 0 < entries(small) <= 20
    assert table_tokens_per_round(small, frequent, 3)[2] > 3.5


def test_tokens_per_round_are_those_of_rounds():
    table = build_table([text([1, 2, 3, 4, 5])], orders=(1,), max_bytes=1000, min_count=1)
    # Rounds at two nodes: [2 3 4] accepted two and own; [5 9]: accepted 5, own 9; [9] own; [1] own.
    assert table_tokens_per_round(table, [text([1, 2, 3, 4, 5, 9, 9, 1])], 2)[1] == pytest.approx(7 / 4)


def test_pool_from_a_data_set_speeds_up_its_target_and_changes_nothing(world, tmp_path):
    result = make_pool(
        str(world.target), world.data, tmp_path / "pool", orders=(1, 2), max_bytes=50_000, min_count=1, sizes=3,
        origin={"command": "test"},
    )  # fmt: skip
    assert result["file_bytes"] < 60_000
    assert result["tokens_per_round"][2] > 2.0
    table = load_table(tmp_path / "pool", world.files.fingerprint)
    assert set(table.orders) == {1, 2}
    plain = LLM(world.target, speculative_config=None, threads=1)
    config = {"method": "table", "model": str(tmp_path / "pool"), "num_speculative_tokens": 3}
    drafting = plain.with_speculation(config)
    params = SamplingParams(temperature=0, max_tokens=20)
    prompts = [tokens[:prompt] for tokens, prompt, _ in world.texts[:6]]
    for one, two in zip(plain.generate(prompts, params), drafting.generate(prompts, params), strict=True):
        assert one.outputs[0].token_ids == two.outputs[0].token_ids
    assert drafting.totals.tokens_per_round > 1.5
    assert "tokens per round" in (tmp_path / "pool" / "README.md").read_text().lower()


def test_refusals_name_what_is_wrong(world, tmp_path):
    with pytest.raises(InvalidInputError, match="no answer token"):
        build_table([Text(np.arange(5), np.zeros(5, dtype=bool))], orders=(1,), max_bytes=1000)
    with pytest.raises(InvalidInputError, match="max_bytes 3"):
        build_table([text([1, 2])], orders=(1,), max_bytes=3)
    other = planted_target(tmp_path / "other", seed=1)
    (other / "config.json").write_text((other / "config.json").read_text().replace("1e-06", "2e-06"))
    options = {"orders": (1,), "max_bytes": 1000, "min_count": 1, "sizes": 1, "origin": {}}
    with pytest.raises(DataSetError, match="its own target's text"):
        make_pool(str(other), world.data, tmp_path / "pool", **options)
    unheld = write_data(tmp_path / "data", world.target, world.texts[:8], held_out_share=0.0)
    with pytest.raises(DataSetError, match="no held-out conversation"):
        make_pool(str(world.target), unheld, tmp_path / "pool", **options)
    with pytest.raises(InvalidInputError, match="sizes=0"):
        make_pool(str(world.target), world.data, tmp_path / "pool", **{**options, "sizes": 0})
    assert not (tmp_path / "pool").exists()
