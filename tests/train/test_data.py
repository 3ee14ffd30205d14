"""What the generator writes: whose tokens the mask marks, whose states are kept, which prompts are asked."""

import pytest
import torch

from pilotfish.errors import DataSetError, InvalidInputError
from pilotfish.models.base import Segment
from pilotfish.train.batch import BatchMaker
from pilotfish.train.data import generation_seconds, make_data
from pilotfish.train.dataset import DataSet
from pilotfish.train.hidden import compute_states
from pilotfish.train.plans import make_plan
from pilotfish.train.prompts import prompts_checksum
from pilotfish.train.template import TurnTemplate
from tests.train.talking import GOAL, LAYERS, make, settings, talking_model


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return talking_model(tmp_path_factory.mktemp("target"))


@pytest.fixture(scope="module")
def made(model, tmp_path_factory):
    """A finished data set: its directory."""
    path = tmp_path_factory.mktemp("data")
    make(model, path)
    return path


def everything(directory, **options):
    data = DataSet(directory, **options)
    both = [*data.places("train"), *data.places("held_out")]
    boundaries = data.manifest.boundaries
    return sorted((data.read(place, boundaries) for place in both), key=lambda each: each.number)


def runs(mask):
    """Stretches of true in a mask, as (start, stop)."""
    edges = torch.diff(torch.tensor([False, *mask.tolist(), False]).int())
    return list(zip((edges == 1).nonzero().flatten().tolist(), (edges == -1).nonzero().flatten().tolist(), strict=True))


def test_mask_marks_exactly_what_the_target_chose(model, made):
    template = TurnTemplate(model.tokenizer)
    opening, answer_start = template.opening_prefix(""), template.next_turn("x")[-4:]
    between = template.next_prefix()
    turns = greedy = 0
    for each in everything(made):
        tokens = each.tokens.tolist()
        stretches = runs(each.loss_mask)
        assert tokens[: len(opening)] == opening
        for start, stop in stretches:
            assert tokens[start - 4 : start] == answer_start
            assert tokens[stop - 1] in model.eos_ids or stop - start == 12
            assert not set(tokens[start : stop - 1]) & set(model.eos_ids)
        for _, stop in stretches[:-1]:
            assert tokens[stop : stop + len(between) - 1] == between[1:]
        assert stretches[-1][1] == len(tokens)
        turns += len(stretches)
        if each.temperature == 0:
            sequence = model.executor.open(len(tokens))
            choices = model.executor.forward([Segment(sequence, tokens)]).logits.argmax(-1)
            model.executor.close(sequence)
            own = each.loss_mask.nonzero().flatten()
            assert each.tokens[own].tolist() == choices[own - 1].tolist()
            greedy += 1
    totals = DataSet(made).manifest.totals
    assert turns == totals.answers > totals.conversations
    assert greedy > 5


def test_states_kept_in_passing_are_those_computed_again(model, made):
    longest = 0
    for each in everything(made):
        again = compute_states(model.executor, each.tokens.tolist(), (1, LAYERS))
        for boundary in (1, LAYERS):
            assert each.hidden[boundary].dtype == torch.float16
            assert torch.equal(each.hidden[boundary], again[boundary])
        longest = max(longest, len(each.tokens))
    assert longest > 60, "conversations of several turns are among them"


def test_states_of_a_beginning_that_was_in_the_cache_are_computed(model):
    from pilotfish.drafters.base import Observation
    from pilotfish.train.hidden import Recorder

    tokens = [5, 6, 7, 8, 9]
    whole = compute_states(model.executor, tokens, (1,))
    recorder = Recorder((1,), model.executor.config.hidden_size)
    recorder.begin(0, 8)
    recorder.observe(Observation(0, tokens[:4], {1: whole[1][2:3].float()}))
    recorder.observe(Observation(0, tokens, {1: whole[1][3:4].float()}))
    recorder.end(0)
    assert torch.equal(recorder.take(0, tokens, model.executor)[1], whole[1])


def test_states_beyond_float16_are_clamped():
    from pilotfish.train.hidden import as_half

    assert as_half(torch.tensor([[1e9, -1e9, 1.0]])).tolist() == [[65504.0, -65504.0, 1.0]]


def test_manifest_counts_what_is_there(made):
    manifest = DataSet(made).manifest
    conversations = everything(made)
    totals = manifest.totals
    assert totals.answer_tokens == sum(int(each.loss_mask.sum()) for each in conversations) >= GOAL
    assert manifest.totals.answer_tokens - manifest.shards[-1].counts.answer_tokens < GOAL
    assert totals.tokens == sum(len(each.tokens) for each in conversations)
    assert totals.conversations + totals.dropped == 6 * len(manifest.shards)
    assert totals.new_prompts == totals.conversations
    assert 0 < totals.ended < totals.answers
    assert manifest.model.fingerprint
    assert manifest.model.exact is True
    assert manifest.origin == {"command": "test"}
    assert generation_seconds(made) > 0


def test_conversation_depends_on_its_number_alone(model, made, tmp_path):
    """Batches of another size, and a larger goal: the same conversations."""
    make(model, tmp_path / "other", batch=9, goal=GOAL + 60)
    ours = {each.number: each for each in everything(made)}
    theirs = {each.number: each for each in everything(tmp_path / "other")}
    common = ours.keys() & theirs.keys()
    assert len(common) > 20
    for number in common:
        assert ours[number].tokens.tolist() == theirs[number].tokens.tolist()
        assert ours[number].temperature == theirs[number].temperature


def test_other_seed_gives_other_conversations(model, made, tmp_path):
    make(model, tmp_path / "other", seed=1, goal=40)
    ours, theirs = everything(made), everything(tmp_path / "other")
    assert not {tuple(each.tokens.tolist()) for each in ours} & {tuple(each.tokens.tolist()) for each in theirs}


def test_no_opening_is_asked_twice(model):
    own = settings(boundaries=())
    plans = [make_plan(own, (), number) for number in range(6)]
    seen = set()
    maker = BatchMaker(model, own, lambda tokens: None)
    first = maker.make(plans, seen)
    hashes = {each.prompt_hash for each in first.conversations}
    assert seen == hashes
    second = maker.make(plans, seen)
    assert len(second.conversations) >= 4, "another attempt finds another opening"
    assert not hashes & {each.prompt_hash for each in second.conversations}
    assert second.dropped == 6 - len(second.conversations)


def test_own_prompts_are_answered_each_pass_and_their_turns_kept(model, tmp_path):
    prompts = [("looks once", "and then what"), ("the shark",), ("where to go",)]
    own = settings(prompts=prompts_checksum(prompts), passes=3, invent=False, follow_ups=0.0, boundaries=())
    manifest = make_data(model, own, tmp_path / "d", 10_000, prompts=prompts)
    conversations = everything(tmp_path / "d")
    assert [each.number for each in conversations] == list(range(9))
    assert all(each.temperature > 0 for each in conversations[3:]), "greedy answers would be the same again"
    template = TurnTemplate(model.tokenizer)
    for each in conversations:
        turns = prompts[each.number % 3]
        opening = template.opening(turns[0])
        assert each.tokens[: len(opening)].tolist() == opening
        if len(runs(each.loss_mask)) > 1:
            assert turns[1] in model.tokenizer.decode(each.tokens.tolist())
    assert any(len(runs(each.loss_mask)) == 2 for each in conversations)
    assert manifest.totals.new_prompts == 3
    assert len({tuple(each.tokens.tolist()) for each in conversations}) > 6


def test_raw_prompts_are_continued_as_they_are(model, tmp_path):
    prompts = [("looks once",), ("the shark",)]
    own = settings(
        prompts=prompts_checksum(prompts), invent=False, raw=True, max_turns=1, follow_ups=0.0, boundaries=(2,)
    )
    make_data(model, own, tmp_path / "d", 10_000, prompts=prompts)
    for each, (text,) in zip(everything(tmp_path / "d"), prompts, strict=True):
        ids = model.tokenizer.encode(text)
        assert each.tokens[: len(ids)].tolist() == ids
        assert each.loss_mask.tolist() == [False] * len(ids) + [True] * (len(each.tokens) - len(ids))
        assert each.hidden[2].shape == (len(each.tokens) - 1, model.executor.config.hidden_size)


def test_prompt_with_no_room_for_an_answer_is_dropped_and_counted(model, tmp_path):
    prompts = [("looks once " * 100,), ("the shark",)]
    own = settings(prompts=prompts_checksum(prompts), invent=False)
    assert make_data(model, own, tmp_path / "d", 10_000, prompts=prompts).totals.dropped == 1
    assert [each.number for each in everything(tmp_path / "d")] == [1]


def test_batch_larger_than_the_cache_waits_its_turn(tmp_path, made):
    small = talking_model(tmp_path / "target")
    longest = -(-max(len(each.tokens) for each in everything(made)) // small.executor.page_size)
    small.executor.limit_pages(longest + 1)
    make(small, tmp_path / "d", goal=60)
    first = everything(tmp_path / "d")
    assert [each.tokens.tolist() for each in first] == [each.tokens.tolist() for each in everything(made)[: len(first)]]


def test_model_that_invents_nothing_is_refused(tmp_path):
    from pilotfish.models.loading import load_model
    from tests.models.tiny_models import tiny_hf_directory

    babbling = load_model(tiny_hf_directory(tmp_path / "target"), threads=1)
    with pytest.raises(DataSetError, match="invents no usable prompts"):
        make(babbling, tmp_path / "d", max_prompt_tokens=4, boundaries=())


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"passes": 0}, "passes=0: expected at least 1"),
        ({"temperatures": ()}, "temperatures=.*expected at least one"),
        ({"temperatures": ((-1.0, 1.0),)}, "temperatures of at least 0"),
        ({"follow_ups": 1.5}, "follow_ups=1.5: expected a number from 0 to 1"),
        ({"boundaries": (3, 1)}, "boundaries=.*increasing"),
        ({"invent": False}, "no prompts"),
        ({"raw": True}, "raw continues prompts"),
        ({"passes": 2, "temperatures": ((0.0, 1.0),)}, "same answers again"),
    ],
)
def test_setting_out_of_range_is_named(values, message):
    with pytest.raises(InvalidInputError, match=message):
        settings(**values)


def test_boundary_the_model_has_not_is_named(model, tmp_path):
    with pytest.raises(InvalidInputError, match=r"boundaries \[9\]: .* has 3 layers; expected 0 to 3"):
        make(model, tmp_path / "d", boundaries=(1, 9))
    assert not (tmp_path / "d").exists()
