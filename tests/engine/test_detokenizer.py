"""Deltas never split a character and join to the whole text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from pilotfish.engine.detokenizer import Detokenizer


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
