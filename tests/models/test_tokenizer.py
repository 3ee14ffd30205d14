import json
import subprocess
import sys
from random import Random

import pytest
import sentencepiece
from tokenizers import Tokenizer as RawTokenizer

from pilotfish.errors import (
    CorruptModelError,
    InvalidInputError,
    ModelNotFoundError,
    PromptError,
    TokenizerMismatchError,
    UnsupportedModelError,
)
from pilotfish.models.files import resolve
from pilotfish.models.gguf_tokenizer import gguf_tokenizer_directory
from pilotfish.models.tokenizer import load_tokenizer, require_messages, require_same_tokenizer, same_tokenizer
from tests.models.tiny_models import (
    TEXT,
    tiny_hf_directory,
    tiny_tokenizer,
    tiny_transformers_model,
    trained_byte_level,
    trained_sentencepiece_style,
    write_gguf,
)

TEXTS = (
    *TEXT,
    "Hello world",
    "",
    " ",
    "   three before, two after  ",
    "in 2024  12345 and x1y22",
    "tabs\tand\r\nnew lines\n\n\n",
    "e\u0301 composed or not: é, 👩‍🚀 and \u200b zero width",
    "don't, we'LL, it's",
)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("PILOTFISH_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def byte_level(tmp_path_factory):
    return load_tokenizer(tiny_tokenizer(tmp_path_factory.mktemp("byte-level")))


def test_truncation_and_padding_of_a_file_are_undone_before_threads_use_it(tmp_path):
    directory = tiny_tokenizer(tmp_path)
    raw = RawTokenizer.from_file(str(directory / "tokenizer.json"))
    raw.enable_truncation(4)
    raw.enable_padding(length=50)
    raw.save(str(directory / "tokenizer.json"))
    tokenizer = load_tokenizer(directory)
    told = json.loads(tokenizer.to_json())
    assert (told["truncation"], told["padding"]) == (None, None)
    assert tokenizer.decode(tokenizer.encode(TEXTS[0])) == TEXTS[0]


@pytest.fixture(scope="module")
def llama():
    return tiny_transformers_model(vocab_size=450)


def edited(path, kind="byte_level", **edits):
    """A tokenizer directory whose tokenizer.json went through functions by top-level key."""
    tiny_tokenizer(path, kind=kind)
    parts = json.loads((path / "tokenizer.json").read_text())
    for key, edit in edits.items():
        parts[key] = edit(parts[key])
    (path / "tokenizer.json").write_text(json.dumps(parts))
    return load_tokenizer(path)


@pytest.mark.parametrize("text", TEXTS)
def test_tokenizer_byte_level_round_trip(byte_level, text):
    assert byte_level.decode(byte_level.encode(text)) == text


def test_tokenizer_knows_its_size_and_special_ids(byte_level):
    assert byte_level.vocab_size == 384
    assert (byte_level.bos_id, byte_level.eos_id) == (1, 2)
    assert byte_level.special_ids == {0, 1, 2}
    assert byte_level.token(2) == "<|im_end|>"
    assert byte_level.token(10_000) is None


def test_tokenizer_leaves_special_tokens_out_unless_asked(byte_level):
    ids = byte_level.encode("<|im_start|>the shark<|im_end|>")
    assert (ids[0], ids[-1]) == (1, 2)
    assert byte_level.decode(ids) == "the shark"
    assert byte_level.decode(ids, skip_special_tokens=False) == "<|im_start|>the shark<|im_end|>"


@pytest.mark.parametrize("skip", [True, False])
def test_joined_bytes_are_the_text_of_the_library(byte_level, skip):
    random = Random(1)
    ids = range(byte_level.vocab_size)
    special = sorted(byte_level.special_ids)
    assert special
    samples = [[token] for token in ids]
    samples += [random.choices([*ids, *special * 9], k=random.randrange(8)) for _ in range(2000)]
    for sample in samples:
        text = byte_level.decode(sample, skip_special_tokens=skip)
        assert text == byte_level.decode_by_library(sample, skip_special_tokens=skip)


def test_tokenizer_decode_never_tidies_spaces(byte_level):
    text = "wait , what ? do n't ."
    assert byte_level.decode(byte_level.encode(text)) == text


def test_tokenizer_adds_special_tokens_only_when_asked(tmp_path):
    bos = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
    }
    tokenizer = edited(tmp_path, "sentencepiece", post_processor=lambda _: bos)
    with_bos, without = tokenizer.encode("the shark"), tokenizer.encode("the shark", add_special_tokens=False)
    assert with_bos == [1, *without]


def test_chat_follows_the_template(byte_level):
    ids = byte_level.chat([{"role": "user", "content": "go"}, {"role": "assistant", "content": "where?"}])
    expected = "<|im_start|>user\ngo<|im_end|>\n<|im_start|>assistant\nwhere?<|im_end|>\n<|im_start|>assistant\n"
    assert byte_level.decode(ids, skip_special_tokens=False) == expected
    assert ids.count(1) == 3
    short = byte_level.chat([{"role": "user", "content": "go"}], add_generation_prompt=False)
    assert byte_level.decode(short, skip_special_tokens=False) == "<|im_start|>user\ngo<|im_end|>\n"


def test_chat_without_a_template_is_refused(tmp_path):
    tokenizer = load_tokenizer(tiny_tokenizer(tmp_path, chat=False))
    with pytest.raises(InvalidInputError, match="no chat template"):
        tokenizer.chat([{"role": "user", "content": "go"}])


@pytest.mark.parametrize(
    ("messages", "named"),
    [
        ([], "non-empty list"),
        ("hello", "non-empty list"),
        (["hello"], "message 0: got str"),
        ([{"role": "user", "content": "a"}, {"role": "user"}], "message 1: got no 'content'"),
        ([{"content": "a"}], "message 0: got no 'role'"),
        ([{"role": "user", "content": 3}], "message 0: got content of type int"),
        ([{"role": "user", "content": None}], "message 0: got content of type NoneType"),
    ],
)
def test_malformed_messages_are_refused_with_number_and_key(messages, named):
    with pytest.raises(PromptError, match=named):
        require_messages(messages)


def test_chat_checks_its_messages(byte_level):
    with pytest.raises(PromptError, match="message 1: got no 'content'"):
        byte_level.chat([{"role": "user", "content": "a"}, {"role": "user"}])


def test_chat_that_the_template_refuses_is_a_prompt_error(tmp_path):
    tiny_tokenizer(tmp_path)
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    settings["chat_template"] = "{{ raise_exception('roles must alternate') }}"
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    with pytest.raises(PromptError, match="roles must alternate"):
        load_tokenizer(tmp_path).chat([{"role": "user", "content": "go"}])


def test_same_tokenizer_finds_no_difference_between_copies(byte_level, tmp_path):
    assert same_tokenizer(byte_level, load_tokenizer(tiny_tokenizer(tmp_path, chat=False))) is None


def test_same_tokenizer_names_the_first_differing_token(byte_level, tmp_path):
    def swap(model):
        by_id = {token_id: token for token, token_id in model["vocab"].items()}
        model["vocab"] |= {by_id[300]: 301, by_id[301]: 300}
        return model

    other = edited(tmp_path, model=swap)
    difference = same_tokenizer(byte_level, other)
    assert (difference.token_id, difference.part) == (300, "vocabulary")
    assert (difference.target, difference.draft) == (byte_level.token(300), byte_level.token(301))
    with pytest.raises(TokenizerMismatchError, match="token 300 is") as caught:
        require_same_tokenizer(byte_level, other)
    assert other.name in str(caught.value)
    assert byte_level.name in str(caught.value)


def test_same_tokenizer_sees_a_token_that_only_one_has(byte_level, tmp_path):
    smaller = load_tokenizer(tiny_tokenizer(tmp_path, vocab_size=380))
    difference = same_tokenizer(byte_level, smaller)
    assert (difference.token_id, difference.draft) == (380, None)


def test_same_tokenizer_sees_another_order_of_merges(byte_level, tmp_path):
    def swap(model):
        model["merges"][5:7] = reversed(model["merges"][5:7])
        return model

    difference = same_tokenizer(byte_level, edited(tmp_path, model=swap))
    assert (difference.token_id, difference.part) == (None, "merges[5]")


def test_same_tokenizer_sees_another_splitting_and_no_cosmetics(byte_level, tmp_path):
    byte_step = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": True}
    digits = {"type": "Digits", "individual_digits": True}
    cosmetic = {"type": "Sequence", "pretokenizers": [digits, byte_step]}
    assert same_tokenizer(byte_level, edited(tmp_path / "a", pre_tokenizer=lambda _: cosmetic)) is None
    difference = same_tokenizer(byte_level, edited(tmp_path / "b", pre_tokenizer=lambda _: byte_step))
    assert difference.part == "pre_tokenizer[0]"
    assert "Digits" in difference.target


def test_load_tokenizer_is_the_same_with_and_without_a_model_beside_it(tmp_path, byte_level):
    tokenizer = load_tokenizer(tiny_hf_directory(tmp_path / "m"), name="reef/tiny")
    assert tokenizer.name == "reef/tiny"
    assert same_tokenizer(byte_level, tokenizer) is None
    assert all(tokenizer.encode(text) == byte_level.encode(text) for text in TEXTS)
    assert tokenizer.special_ids == byte_level.special_ids


def test_load_tokenizer_without_or_with_a_broken_file_is_refused(tmp_path):
    with pytest.raises(ModelNotFoundError, match=r"tokenizer\.json"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text('{"model": ')
    with pytest.raises(CorruptModelError, match="cannot be read"):
        load_tokenizer(tmp_path)


def test_tokenizer_module_is_light_and_loading_is_silent(tmp_path):
    tiny_tokenizer(tmp_path)
    code = (
        "import sys; from pilotfish.models.tokenizer import load_tokenizer; assert 'transformers' not in sys.modules;"
        f"t = load_tokenizer({str(tmp_path)!r}); t.encode('the shark ' * 5000)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (result.stdout, result.stderr) == ("", "")


def test_gguf_byte_level_tokenizer_is_the_original(byte_level, tmp_path, llama):
    path = write_gguf(tmp_path / "m.gguf", llama, tokenizer_json=trained_byte_level(), padding=450 - 384)
    converted = load_tokenizer(resolve(path).tokenizer_path)
    assert same_tokenizer(byte_level, converted) is None
    assert (converted.bos_id, converted.eos_id, converted.vocab_size) == (1, 2, 384)
    assert converted.special_ids == {0, 1, 2}
    for text in TEXTS:
        assert converted.encode(text) == byte_level.encode(text)
    messages = [{"role": "user", "content": "go"}]
    assert converted.chat(messages) == byte_level.chat(messages)


def test_gguf_tokenizer_is_converted_once(tmp_path, llama):
    path = write_gguf(tmp_path / "m.gguf", llama, tokenizer_json=trained_byte_level())
    directory = resolve(path).tokenizer_path
    stamps = {file.name: file.stat().st_mtime_ns for file in directory.iterdir()}
    assert resolve(path).tokenizer_path == directory
    assert {file.name: file.stat().st_mtime_ns for file in directory.iterdir()} == stamps
    assert [entry.name for entry in directory.parent.iterdir()] == [directory.name]


def test_gguf_sentencepiece_tokenizer_is_the_original(tmp_path, llama):
    path = write_gguf(tmp_path / "m.gguf", llama, tokenizer_json=trained_sentencepiece_style())
    converted = load_tokenizer(resolve(path).tokenizer_path)
    original = RawTokenizer.from_str(trained_sentencepiece_style())
    assert (converted.bos_id, converted.eos_id) == (1, 2)
    for text in TEXTS[:10]:
        assert converted.encode(text) == original.encode(text).ids
        assert converted.decode(converted.encode(text)) == text


def test_gguf_sentencepiece_tokenizer_agrees_with_sentencepiece(tmp_path):
    sentences = tmp_path / "text"
    sentences.write_text("\n".join(TEXT * 5), encoding="utf-8")
    sentencepiece.SentencePieceTrainer.train(
        input=str(sentences), model_prefix=str(tmp_path / "spm"), vocab_size=420, model_type="bpe",
        byte_fallback=True, normalization_rule_name="identity", remove_extra_whitespaces=False, minloglevel=2,
        num_threads=1,
    )  # fmt: skip
    model = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "spm.model"))
    size = model.get_piece_size()
    types = [
        2 if model.is_unknown(piece) else 3 if model.is_control(piece) else 6 if model.is_byte(piece) else 1
        for piece in range(size)
    ]
    metadata = {
        "general.architecture": "llama",
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [model.id_to_piece(piece) for piece in range(size)],
        "tokenizer.ggml.scores": [model.get_score(piece) for piece in range(size)],
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }
    tokenizer = load_tokenizer(gguf_tokenizer_directory(tmp_path / "m.gguf", metadata, "checksum"))
    for text in TEXTS:
        if text:  # of nothing, llama.cpp makes the mark of the prefix; sentencepiece makes nothing
            assert tokenizer.encode(text) == [1, *model.encode(text)], text
            assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize(
    ("changes", "error", "named"),
    [
        ({"pre": "dbrx"}, UnsupportedModelError, "'dbrx'"),
        ({"model": "bert"}, UnsupportedModelError, "'bert'"),
        ({"merges": ["a zz"]}, CorruptModelError, "'a zz'"),
        ({"tokens": ["a", "a"], "token_type": [1, 1]}, CorruptModelError, "'a' has two ids"),
        ({"token_type": [1]}, CorruptModelError, "1 types"),
        ({"tokens": None}, CorruptModelError, "tokenizer.ggml.tokens"),
        ({"eos_token_id": 99}, CorruptModelError, "eos_token_id is 99"),
    ],
)
def test_gguf_tokenizer_we_cannot_convert_is_refused_and_leaves_nothing(changes, error, named, tmp_path):
    values = {"model": "gpt2", "pre": "gpt-2", "tokens": ["a", "b", "ab"], "token_type": [1, 1, 1], "merges": ["a b"]}
    metadata = {f"tokenizer.ggml.{key}": value for key, value in {**values, **changes}.items()}
    with pytest.raises(error, match=named):
        gguf_tokenizer_directory(tmp_path / "m.gguf", metadata, "checksum")
    assert not list((tmp_path / "cache").rglob("*"))


def test_gguf_gemma_tokenizer_reaches_runs_of_spaces_and_newline_tokens(tmp_path):
    tokens = ["<pad>", "<eos>", "<bos>", "<unk>", "\n\n", "  ", "   ", "▁a", "ab", "▁", "a", "b", "\n", "▁ab"]
    metadata = {
        "general.architecture": "gemma3",
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [0.0] * len(tokens),
        "tokenizer.ggml.token_type": [3, 3, 3, 2, 4, 4, 4, *[1] * 7],
        "tokenizer.ggml.add_space_prefix": False,
        "tokenizer.ggml.bos_token_id": 2,
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.ggml.unknown_token_id": 3,
    }
    tokenizer = load_tokenizer(gguf_tokenizer_directory(tmp_path / "m.gguf", metadata, "checksum"))
    assert tokenizer.vocab_size == len(tokens)
    assert tokenizer.encode("ab ab") == [2, 8, 13]
    assert tokenizer.encode("b  b\n\nb   \n") == [2, 11, 5, 11, 4, 11, 6, 12]
    assert tokenizer.decode([8, 5, 11, 4]) == "ab  b\n\n"


@pytest.mark.demo_model
def test_demo_tokenizer_has_the_known_ids_and_round_trips(monkeypatch):
    monkeypatch.delenv("PILOTFISH_CACHE")
    files = resolve("smollm2-135m-instruct")
    tokenizer = load_tokenizer(files.tokenizer_path)
    assert tokenizer.encode("Hello world") == [19556, 905]
    assert tokenizer.encode("<|endoftext|><|im_start|><|im_end|>") == [0, 1, 2]
    assert tokenizer.encode("a  2024", add_special_tokens=False) == [81, 256, *(34, 32, 34, 36)]
    assert (tokenizer.vocab_size, tokenizer.eos_id) == (49152, 2)
    assert tokenizer.special_ids == set(range(17))
    for text in TEXTS:
        assert tokenizer.decode(tokenizer.encode(text)) == text
    ids = tokenizer.chat([{"role": "user", "content": "Hi"}])
    assert ids[0] == 1
    assert ids.count(1) == 3
    assert tokenizer.decode(ids, skip_special_tokens=False).endswith(
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
