import pytest
import torch

from pilotfish.errors import SpeculativeConfigError
from pilotfish.terms import Draft
from pilotfish.verify import RULES, block, rejection, traversal


def test_rules_are_listed_by_name_with_what_they_need():
    assert {name: (rule.name, rule.needs_laws, rule.trees) for name, rule in RULES.items()} == {
        "match": ("match", False, True),
        "rejection": ("rejection", True, False),
        "block": ("block", True, False),
        "traversal": ("traversal", True, True),
    }
    assert [RULES[name].verify for name in ("match", "rejection", "block", "traversal")] == [
        None,
        rejection,
        block,
        traversal,
    ]


def test_rules_cannot_be_changed():
    with pytest.raises(TypeError):
        RULES["fifth"] = RULES["match"]


@pytest.mark.parametrize("name", [name for name, rule in RULES.items() if rule.needs_laws])
def test_rules_refuse_a_tree_exactly_where_the_table_says(name):
    draft, target = Draft((0, 1), (-1, -1)), torch.full((3, 4), 0.25)
    accept = torch.full((2,), 0.5, dtype=torch.float64)
    if RULES[name].trees:
        assert RULES[name].verify(draft, target, accept, 0.5).next_token in range(4)
    else:
        with pytest.raises(SpeculativeConfigError, match=name):
            RULES[name].verify(draft, target, accept, 0.5)
