"""Deltas never split a character and join to the whole text."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from pilotfish.engine.detokenizer import CONTEXT_TOKENS, Detokenizer
from tests.models.tiny_models import trained_byte_level, trained_sentencepiece_style


@pytest.fixture(scope="module")
def byte_level():
    """A byte-level tokenizer with one token per byte: every character beyond ASCII takes several."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({char: place for place, char in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def pushed(decode, prompt, ids):
    detokenizer = Detokenizer(decode, prompt)
    return [*(detokenizer.push(token) for token in ids), detokenizer.flush()]


@given(text=st.text(max_size=40), prompt=st.text(max_size=10))
def test_deltas_join_to_the_text_and_split_no_character(byte_level, text, prompt):
    ids = byte_level.encode(text).ids
    deltas = pushed(byte_level.decode, byte_level.encode(prompt).ids, ids)
    assert "".join(deltas) == text
    if "\ufffd" not in text:
        assert not any("\ufffd" in delta for delta in deltas)


def test_character_waits_for_its_last_byte(byte_level):
    ids = byte_level.encode("a€b").ids
    assert pushed(byte_level.decode, [], ids) == ["a", "", "", "€", "b", ""]


def test_incomplete_character_is_shown_at_the_end(byte_level):
    ids = byte_level.encode("a€").ids[:-1]
    assert pushed(byte_level.decode, [], ids) == ["a", "", "", "\ufffd"]


def test_character_begun_in_the_prompt_is_finished_in_the_output(byte_level):
    ids = byte_level.encode("€x").ids
    assert "".join(pushed(byte_level.decode, ids[:1], ids[1:])) == "€x"


def test_leading_space_of_a_word_survives_a_token_without_text():
    pieces = {0: "", 1: "▁hello", 2: "▁world"}

    def decode(ids):
        return "".join(pieces[token] for token in ids).replace("▁", " ").removeprefix(" ")

    assert pushed(decode, [1], [2, 0, 1]) == [" world", "", " hello", ""]
    assert pushed(decode, [], [1, 2]) == ["hello", " world", ""]


TOKENIZERS = {"byte_level": trained_byte_level, "sentencepiece": trained_sentencepiece_style}
TEXTS = st.one_of(st.text(max_size=30), st.text(alphabet=" ab\n\té☃𝄞don't", max_size=30))


@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize("kind", list(TOKENIZERS))
def test_deltas_of_any_tokens_join_to_the_whole_text(kind, special):
    """Random ids, control tokens and all: what comes is what prompt and output decode to together."""
    tokenizer = Tokenizer.from_str(TOKENIZERS[kind]())
    ids = st.lists(st.integers(0, tokenizer.get_vocab_size() - 1), max_size=24)

    def decode(tokens):
        return tokenizer.decode(list(tokens), skip_special_tokens=not special)

    @settings(max_examples=150, deadline=None, derandomize=True)
    @given(prompt=ids, output=ids)
    def check(prompt, output):
        prompt = prompt[-CONTEXT_TOKENS:]
        whole, known = decode([*prompt, *output]), decode(prompt)
        deltas = pushed(decode, prompt, output)
        # Where bytes are left that make no character, byte fallback turns the whole run of them into marks of failure,
        # what was shown of it included.
        if "\ufffd" not in known + whole and whole.startswith(known):
            assert "".join(deltas) == whole[len(known) :]
            assert not any("\ufffd" in delta for delta in deltas)

    check()


@pytest.mark.parametrize("kind", list(TOKENIZERS))
def test_deltas_of_a_text_join_to_it_with_its_leading_space(kind):
    tokenizer = Tokenizer.from_str(TOKENIZERS[kind]())

    @settings(max_examples=150, deadline=None, derandomize=True)
    @given(text=TEXTS, cut=st.integers(0, 30))
    def check(text, cut):
        ids = tokenizer.encode(text).ids
        cut = min(cut, len(ids))
        prompt = ids[:cut]
        deltas = pushed(tokenizer.decode, prompt, ids[cut:])
        known, whole = tokenizer.decode(prompt), tokenizer.decode(ids)
        if "\ufffd" not in known + whole and cut <= CONTEXT_TOKENS:
            assert "".join(deltas) == whole[len(known) :]
            assert not any("\ufffd" in delta for delta in deltas)

    check()


def test_first_word_after_a_sentencepiece_prompt_keeps_its_space():
    tokenizer = Tokenizer.from_str(trained_sentencepiece_style())
    first, second = tokenizer.encode("the").ids, tokenizer.encode("shark").ids
    assert tokenizer.id_to_token(second[0]).startswith("▁")
    assert "".join(pushed(tokenizer.decode, first, second)) == " shark"
    assert "".join(pushed(tokenizer.decode, [], second)) == "shark"


def test_control_token_is_written_out_where_it_stands():
    tokenizer = Tokenizer.from_str(trained_byte_level())
    ids = tokenizer.encode("the shark").ids

    def decode(tokens):
        return tokenizer.decode(list(tokens), skip_special_tokens=False)

    assert "".join(pushed(decode, ids, [2, *ids])) == "<|im_end|>the shark"
    assert "".join(pushed(tokenizer.decode, ids, [2, *ids])) == "the shark"
