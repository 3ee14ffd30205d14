"""Students: what they compute in training is what the engine computes with the files they write."""

import json

import pytest
import torch
from safetensors.torch import load_file

from pilotfish.drafters.base import Observation
from pilotfish.drafters.eagle import EagleDrafter
from pilotfish.engine.llm import LLM
from pilotfish.errors import InvalidInputError, UnsupportedModelError
from pilotfish.models.base import Segment
from pilotfish.models.decoder import RowAttention
from pilotfish.models.eagle_files import load_eagle_head
from pilotfish.models.eagle_writing import LAYOUTS, convert_eagle_head
from pilotfish.models.exit_adapter import load_exit_adapter
from pilotfish.models.files import resolve
from pilotfish.models.loading import load_model
from pilotfish.sampling.params import SamplingParams
from pilotfish.sampling.sampler import Sampler
from pilotfish.train.packs import Packs
from pilotfish.train.vocabulary import DraftVocabulary, choose_vocabulary
from tests.drafters.common import propose
from tests.train.tiny_data import LAYERS, VOCAB, open_data
from tests.train.tiny_training import draft, exit_adapter, head

IDS = DraftVocabulary(torch.arange(0, VOCAB, 2), 0.5)
SHAPES = {
    "one layer": {},
    "two layers": {"layers": 2, "start_layers": (0, 3)},
    "norms of 3.1": {"norm_output": True, "norm_before_residual": True},
}


@pytest.fixture(scope="module")
def packs(world):
    return Packs(open_data(world.data, world.target), "train", range(LAYERS + 1), batch_tokens=150, max_length=64)


@pytest.fixture(scope="module")
def pack(packs):
    return packs.read(packs.plan(0)[0])


def test_pack_has_each_row_beside_its_next_token(world, pack):
    texts = {tuple(tokens[:-1]): (tokens, prompt) for tokens, prompt, _ in world.texts}
    start = 0
    for length in pack.lengths:
        rows = slice(start, start + length)
        tokens, prompt = texts[tuple(pack.tokens[rows].tolist())]
        assert pack.following[rows].tolist() == tokens[1:]
        assert pack.answers[rows].tolist() == [place >= prompt for place in range(1, len(tokens))]
        assert pack.positions[rows].tolist() == list(range(length))
        start += length
    assert start == len(pack.tokens)


def test_starts_reach_answers_of_their_own_conversation_only(pack):
    bounds = torch.tensor(pack.lengths).cumsum(0)
    conversation = torch.searchsorted(bounds, torch.arange(len(pack.tokens)), right=True)
    for depth, starts in enumerate(pack.starts(4)):
        expected = [
            row
            for row in range(len(pack.tokens) - depth - 1)
            if conversation[row] == conversation[row + depth + 1] and all(pack.answers[row + 1 : row + depth + 2])
        ]
        assert starts.tolist() == expected


def test_order_is_the_seeds_and_every_conversation_comes_once_an_epoch(packs):
    flat = [place for places in packs.plan(0) for place in places]
    assert sorted(flat, key=repr) == sorted(packs.places, key=repr)
    assert packs.plan(0) != packs.plan(1)
    assert all(sum(place.tokens - 1 for place in places) <= 150 for places in packs.plan(0))


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_unrolled_head_computes_what_drafting_from_scratch_does(world, pack, shape):
    student = head(world.files, IDS, **shape).eval()
    with torch.no_grad():
        depths = student(pack, 3)
        states = torch.cat([pack.hidden[boundary] for boundary in student.boundaries], dim=-1)
        start = pack.lengths[0]
        stop = start + pack.lengths[1]  # the second conversation, so that the first must not be seen
        following = pack.following[start:stop]
        checked = 0
        for depth, found in enumerate(depths):
            for law, logits in zip(found.laws.tolist(), found.logits, strict=True):
                row = law - depth - 1 - start
                if not 0 <= row < stop - start or row % 5:
                    continue
                features = student.head.fuse(states[start : start + row + 1])
                for ahead in range(depth + 1):
                    positions = torch.arange(row + 1 + ahead)
                    attention = RowAttention(student.head.config.layer, positions, positions[:, None] >= positions)
                    normed, fed_back = student.head.run(following[: row + 1 + ahead], features, positions, attention)
                    features = torch.cat((features, fed_back[-1:]))
                assert torch.allclose(student.head.logits(normed[-1:])[0], logits, atol=1e-5)
                checked += 1
        assert checked > 6


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    "shape", [{}, {"start_layers": (2,), "norm_output": True, "fc_norm": False}, {"share_lm_head": True}]
)
def test_head_loads_from_either_layout_with_the_trainers_logits(world, pack, tmp_path, layout, shape):
    student = head(world.files, IDS, layout=layout, **shape).eval()
    student.save(tmp_path / "head", torch.float32, None)
    loaded = load_eagle_head(tmp_path / "head", world.files.config, world.files.weights)
    stored = "lm_head.weight" in load_file(tmp_path / "head" / "model.safetensors")
    assert stored == ("head.lm_head.weight" in student.trained())
    assert stored != shape.get("share_lm_head", False)
    assert loaded.target_ids.tolist() == IDS.ids.tolist()
    assert loaded.config.boundaries_of(LAYERS) == student.boundaries
    other = head(world.files, IDS, layout=layout, **shape).eval()
    other.head = loaded
    with torch.no_grad():
        for one, two in zip(student(pack, 3), other(pack, 3), strict=True):
            assert torch.allclose(one.logits, two.logits, atol=1e-5)


def test_conversion_keeps_every_bit_and_comes_back(world, tmp_path):
    head(world.files, IDS, layout="speculators").save(tmp_path / "one", torch.bfloat16, None)
    convert_eagle_head(tmp_path / "one", tmp_path / "two", "sglang")
    convert_eagle_head(tmp_path / "two", tmp_path / "three", "speculators")
    head(world.files, IDS, layout="sglang").save(tmp_path / "written", torch.bfloat16, None)
    tensors = [load_file(tmp_path / name / "model.safetensors") for name in ("one", "two", "three")]
    assert {name.replace("layers.0.", "midlayer.") for name in tensors[0]} == set(tensors[1])
    assert set(load_file(tmp_path / "written" / "model.safetensors")) == set(tensors[1])
    for name, tensor in tensors[0].items():
        for same in (tensors[1][name.replace("layers.0.", "midlayer.")], tensors[2][name]):
            assert same.dtype == tensor.dtype
            assert torch.equal(same, tensor)
    values = [json.loads((tmp_path / name / "config.json").read_text()) for name in ("one", "two", "three", "written")]
    assert values[0] == values[2]
    assert values[1] == values[3]
    assert values[1]["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [0, 1, 3]
    assert values[0]["eagle_aux_hidden_state_layer_ids"] == [1, 2, 4]


def test_conversion_refuses_what_the_layout_has_no_place_for(world, tmp_path):
    head(world.files, IDS, layers=2).save(tmp_path / "two", torch.float32, None)
    with pytest.raises(UnsupportedModelError, match="names for one layer, this head has 2"):
        convert_eagle_head(tmp_path / "two", tmp_path / "out", "sglang")
    head(world.files, IDS, boundaries=(0, 2, 4)).save(tmp_path / "embedding", torch.float32, None)
    with pytest.raises(UnsupportedModelError, match="no number for the embedding"):
        convert_eagle_head(tmp_path / "embedding", tmp_path / "out", "sglang")
    assert not (tmp_path / "out").exists()
    with pytest.raises(InvalidInputError, match="is there already"):
        convert_eagle_head(tmp_path / "two", tmp_path / "embedding", "speculators")


def test_head_starts_from_the_layers_that_were_named(world):
    student = head(world.files, IDS, layers=2, start_layers=(1, 3))
    first, second = student.head.layers
    read = world.files.weights.read
    assert torch.equal(first.mlp.up_proj.weight, read("model.layers.1.mlp.up_proj.weight"))
    assert torch.equal(second.self_attn.q_proj.weight, read("model.layers.3.self_attn.q_proj.weight"))
    assert torch.equal(student.head.lm_head.weight, read("lm_head.weight")[::2])
    with pytest.raises(InvalidInputError, match="layers 0 to 3"):
        head(world.files, IDS, start_layers=(4,))


def test_head_of_two_layers_drafts_what_computing_from_scratch_does(world, tmp_path):
    head(world.files, IDS, layers=2, start_layers=(1, 3)).save(tmp_path / "head", torch.float32, None)
    loaded = load_eagle_head(tmp_path / "head", world.files.config, world.files.weights)
    boundaries = loaded.config.boundaries_of(LAYERS)
    target = load_model(world.target, threads=1)
    tokens = world.texts[0][0]
    sequence = target.executor.open(64)
    hidden = target.executor.forward([Segment(sequence, tokens[:-1])], capture=boundaries).hidden
    target.executor.close(sequence)
    drafter = EagleDrafter(loaded, boundaries)
    drafter.begin(0, 64)
    for stop in (9, len(tokens)):  # in two parts, so that rows are read into a cache that holds some
        rows = slice(0 if stop == 9 else 8, stop - 1)
        states = {boundary: each[rows] for boundary, each in hidden.items()}
        drafter.observe(Observation(0, tokens[:stop], states))
        draft = propose(drafter, tokens[:stop], 4, Sampler(SamplingParams(temperature=0, seed=0), VOCAB))
        following = list(tokens[1:stop])
        features = loaded.fuse(torch.cat([hidden[boundary][: stop - 1] for boundary in boundaries], dim=-1))
        for token in draft.tokens:
            positions = torch.arange(len(following))
            attention = RowAttention(loaded.config.layer, positions, positions[:, None] >= positions)
            normed, fed_back = loaded.run(torch.tensor(following), features, positions, attention)
            assert token == int(loaded.target_ids[loaded.logits(normed[-1:])[0].argmax()])
            following.append(token)
            features = torch.cat((features, fed_back[-1:]))


def test_draft_model_is_an_ordinary_directory_with_the_trainers_logits(world, pack, tmp_path):
    student = draft(world.files, IDS, layers=(0, 3)).eval()
    student.save(tmp_path / "draft", torch.float32, None)
    loaded = load_model(tmp_path / "draft", executor="torch")
    assert loaded.executor.config.num_layers == 2
    assert loaded.eos_ids == world.files.eos_ids
    (depth,) = student(pack, 1)
    length = pack.lengths[0]
    rows = torch.arange(length)
    attention = RowAttention(loaded.executor.config, rows, rows[:, None] >= rows)
    with torch.no_grad():
        logits = loaded.executor.decoder(pack.tokens[:length], rows, attention)
    own = depth.laws < length
    assert torch.allclose(depth.logits[own], logits[depth.laws[own]], atol=1e-5)
    assert not any("embed" in name or "lm_head" in name for name in student.trained())


def test_exit_adapter_loads_with_the_trainers_logits_and_leaves_answers_as_they_are(world, pack, tmp_path):
    student = exit_adapter(world.files, IDS).eval()
    with torch.no_grad():
        student.adapter.up.weight.normal_(std=0.1)
    student.save(tmp_path / "exit", torch.float32, None)
    loaded = load_exit_adapter(tmp_path / "exit", world.files.config, world.files.weights)
    (depth,) = student(pack, 1)
    assert torch.allclose(loaded(pack.hidden[1][depth.laws]), depth.logits, atol=1e-5)
    params = SamplingParams(temperature=0, max_tokens=12)
    prompts = [tokens[:prompt] for tokens, prompt, _ in world.texts[:4]]
    plain = LLM(world.target, speculative_config=None, threads=1)
    drafting = plain.with_speculation(
        {"method": "early_exit", "model": str(tmp_path / "exit"), "num_speculative_tokens": 3}
    )
    for one, two in zip(plain.generate(prompts, params), drafting.generate(prompts, params), strict=True):
        assert one.outputs[0].token_ids == two.outputs[0].token_ids
    assert drafting.totals.accepted_tokens > 0
    values = json.loads((tmp_path / "exit" / "config.json").read_text())
    (tmp_path / "exit" / "config.json").write_text(json.dumps({**values, "exit_layer": LAYERS}))
    with pytest.raises(UnsupportedModelError, match="exit_layer is 4, the target has 4 layers"):
        load_exit_adapter(tmp_path / "exit", world.files.config, world.files.weights)


def test_vocabulary_is_the_most_frequent_tokens(world, packs):
    counts = packs.token_counts(VOCAB)
    chosen = choose_vocabulary(counts, 100)
    assert chosen.ids.tolist() == sorted(chosen.ids.tolist())
    assert counts[chosen.ids].min() >= max(count for token, count in enumerate(counts) if token not in chosen.ids)
    assert chosen.coverage == pytest.approx(counts[chosen.ids].sum() / counts.sum())
    with pytest.raises(InvalidInputError, match="expected 1 to 384"):
        choose_vocabulary(counts, 385)


def test_target_of_another_family_gets_a_head_but_no_draft_model(tmp_path):
    from tests.models.tiny_models import tiny_hf_directory

    files = resolve(tiny_hf_directory(tmp_path, family="gemma3_text", num_hidden_layers=4, query_pre_attn_scalar=16))
    student = head(files, IDS, boundaries=(1, 2, 4))
    student.save(tmp_path / "head", torch.float32, None)
    assert load_eagle_head(tmp_path / "head", files.config, files.weights).config.layer.family == "llama"
    with pytest.raises(InvalidInputError, match="cannot be written"):
        draft(files, IDS)
    with pytest.raises(InvalidInputError, match="has Llama's layers"):
        head(files, IDS, start_layers=(1,))
