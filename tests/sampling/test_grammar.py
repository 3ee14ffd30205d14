"""What a grammar allows after every prefix, on forks that leave no trace; and the forms that are refused."""

import json
import sys

import numpy as np
import pytest
from tokenizers import Tokenizer

from pilotfish.errors import SamplingParamsError
from pilotfish.sampling import Prefix, SamplingParams, StructuredOutputs
from pilotfish.sampling.grammar import GrammarCompiler, GrammarConstraint, GrammarEnd
from tests.models.tiny_models import trained_byte_level, trained_sentencepiece_style

VOCAB = 384
EOS = 2
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 6}, "count": {"type": "integer"}},
    "required": ["name", "count"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def text():
    return trained_byte_level(VOCAB)


@pytest.fixture(scope="module")
def tokenizer(text):
    return Tokenizer.from_str(text)


@pytest.fixture(scope="module")
def compiler(text):
    return GrammarCompiler(lambda: text, VOCAB, [EOS])


def compiled(compiler, **form):
    return compiler.compile(StructuredOutputs(**form))


def allowed(constraint, *output, path=()):
    return set(np.flatnonzero(constraint.allowed(Prefix([5, 6, *output], 2, tuple(path)))).tolist())


def test_mask_allows_what_may_follow_and_the_end_where_it_may_come(compiler, tokenizer):
    constraint = GrammarConstraint(compiled(compiler, regex="a(b|c)?"))
    a, b, c = (tokenizer.encode(letter).ids[0] for letter in "abc")
    assert a in allowed(constraint)
    assert EOS not in allowed(constraint)
    assert allowed(constraint, a) == {b, c, EOS}
    assert allowed(constraint, path=[a]) == {b, c, EOS}
    assert allowed(constraint, a, path=[b]) == {EOS}


def test_forks_leave_no_trace(compiler, tokenizer):
    grammar = compiled(compiler, json=SCHEMA)
    answer = tokenizer.encode('{"name": "aéb", "count": -12}').ids
    used = GrammarConstraint(grammar)
    committed = [5, 6]
    for place in range(len(answer) + 1):
        fresh = GrammarConstraint(grammar)
        for draft in (answer[place : place + 4], [7, 7], [*answer[place : place + 2], 9], answer[:3]):
            for length in range(len(draft) + 1):
                prefix = Prefix(committed, 2, tuple(draft[:length]))
                one_by_one = used.allowed(prefix)
                used.forced(prefix)
                straight = fresh.allowed(Prefix(tuple(committed), 2, prefix.path))
                assert (one_by_one is None) == (straight is None)
                assert one_by_one is None or (one_by_one == straight).all()
        if place < len(answer):
            assert used.allowed(Prefix(committed, 2))[answer[place]]
            committed.append(answer[place])


def test_output_that_the_grammar_forbids_is_reached_by_nobody(compiler):
    constraint = GrammarConstraint(compiled(compiler, regex="[0-9]+"))
    assert not constraint.allows(Prefix([5], 1, (200,)))
    assert constraint.allowed(Prefix([5], 1, (200,))) is None
    assert constraint.forced(Prefix([5], 1, (200, 3))) == []


def test_forced_tokens_are_each_the_only_one_allowed(compiler, tokenizer):
    constraint = GrammarConstraint(compiled(compiler, json=SCHEMA))
    forced = constraint.forced(Prefix([5, 6], 2))
    assert tokenizer.decode(forced) == '{"name": "'[: len(tokenizer.decode(forced))]
    assert len(forced) > 1
    for place, token in enumerate(forced):
        assert allowed(constraint, path=forced[:place]) == {token}


def test_dead_end_within_a_grammar_allows_nothing_and_raises_nothing(compiler, tokenizer):
    constraint = GrammarConstraint(compiled(compiler, grammar='start: "ab" | "c" /[^\\s\\S]/'))
    assert allowed(constraint, path=tokenizer.encode("c").ids) <= {EOS}


def test_end_is_told_by_the_token_that_completes_the_output(compiler, tokenizer):
    end = GrammarEnd(compiled(compiler, json=SCHEMA))
    told = [end.push(token) for token in tokenizer.encode('{"name": "x", "count": 4}').ids]
    assert told == [False] * (len(told) - 1) + [True]
    assert GrammarEnd(compiled(compiler, regex="ab")).push(tokenizer.encode("z").ids[0]), "a dead end is an end"
    open_end = GrammarEnd(compiled(compiler, regex="a+"))
    assert [open_end.push(tokenizer.encode("a").ids[0]), open_end.push(EOS)] == [False, True]


def test_grammar_over_a_sentencepiece_vocabulary():
    text = trained_sentencepiece_style()
    tokenizer = Tokenizer.from_str(text)
    size = tokenizer.get_vocab_size()
    constraint = GrammarConstraint(GrammarCompiler(lambda: text, size, [2]).compile(StructuredOutputs(regex="é|ü")))
    output = []
    for _ in range(8):
        found = np.flatnonzero(constraint.allowed(Prefix(output, 0)))
        if 2 in found:
            break
        output.append(int(found[0]))
    assert tokenizer.decode(output) in ("é", "ü")


def test_compiler_remembers_and_tokenises_lazily(text):
    asked = []
    own = GrammarCompiler(lambda: asked.append(1) or text, VOCAB, [EOS])
    assert not asked
    assert compiled(own, regex="a") is compiled(own, regex="a")
    compiled(own, regex="b")
    assert len(asked) == 1


@pytest.mark.parametrize(
    ("form", "message"),
    [
        ({"regex": "a(("}, r"structured_outputs.regex is 'a\(\('; expected one that can be compiled"),
        ({"regex": "[^\\s\\S]"}, "some text matches"),
        ({"json": {"type": "object", "patternProperties": 3}}, "structured_outputs.json"),
        ({"json": {"type": "integer", "minimum": 5, "maximum": 3}}, "structured_outputs.json"),
        ({"json": False}, "structured_outputs.json"),
        ({"grammar": "start: missing_rule"}, "structured_outputs.grammar"),
    ],
)
def test_grammar_that_is_broken_or_impossible_is_refused(compiler, form, message):
    with pytest.raises(SamplingParamsError, match=message):
        compiled(compiler, **form)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({}, "has none; expected exactly one of json, regex, grammar, choice"),
        ({"regex": "a", "json": {}}, "has json and regex; expected exactly one of"),
        ({"choices": ["a"]}, "a dictionary with exactly one of"),
        ({"choice": []}, "structured_outputs.choice is empty"),
        ({"choice": ["a", 1]}, "structured_outputs.choice is"),
        ({"json": "[" * 100_000}, "structured_outputs.json is nested too deeply"),
        ({"json": "{"}, "structured_outputs.json is '{'; expected a JSON schema"),
        ({"json": "3"}, "expected a JSON schema"),
        ({"json": {"a": {1}}}, "expected a JSON schema"),
        ({"regex": 3}, "structured_outputs.regex is 3; expected text"),
        ("yes", "a dictionary with exactly one of"),
    ],
)
def test_form_that_is_none_is_refused(value, message):
    with pytest.raises(SamplingParamsError, match=message):
        SamplingParams(structured_outputs=value)


def test_choice_allows_its_texts_and_no_others(compiler, tokenizer):
    texts = ["a b", "c|d\n", "(é", ".*"]
    form = SamplingParams(structured_outputs={"choice": texts}).structured_outputs
    assert (form.kind, form.choice) == ("choice", tuple(texts))
    assert form.text == r"a b|c\x{7c}d\x{a}|\x{28}\x{e9}|\x{2e}\x{2a}"
    grammar = compiler.compile(form)
    for text in [*texts, "c", "c|d", "zz"]:
        constraint = GrammarConstraint(grammar)
        ids = tokenizer.encode(text).ids
        steps = (token in allowed(constraint, *ids[:place]) for place, token in enumerate([*ids, EOS]))
        assert all(steps) == (text in texts), text


def test_form_is_kept_as_text():
    params = SamplingParams(structured_outputs={"json": SCHEMA})
    assert json.loads(params.structured_outputs.text) == SCHEMA
    assert params.structured_outputs == StructuredOutputs(json=json.dumps(SCHEMA))
    assert SamplingParams(structured_outputs={"grammar": "start: /a/"}).structured_outputs.kind == "grammar"


def test_missing_package_is_named_with_the_way_to_install_it(monkeypatch, text):
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(SamplingParamsError, match=r"pip install 'pilotfish\[structured\]'"):
        GrammarCompiler(lambda: text, VOCAB, [EOS]).compile(StructuredOutputs(regex="a"))


def test_model_without_an_end_is_refused(text):
    with pytest.raises(SamplingParamsError, match="needs an end-of-sequence id"):
        GrammarCompiler(lambda: text, VOCAB, []).compile(StructuredOutputs(regex="a"))
