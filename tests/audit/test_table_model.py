"""The toy executor keeps the executor's contract where the audit leans on it."""

import numpy as np
import pytest

from pilotfish.audit.table_model import TableExecutor, nearby, random_table
from pilotfish.errors import CacheFullError, RowsError
from pilotfish.models.base import Segment


@pytest.fixture
def executor():
    return TableExecutor(random_table((1,), 6, order=2, rows=11))


def rows(executor, texts):
    return np.stack([executor.table.logits[executor.table.row(text)] for text in texts])


def test_rows_follow_the_last_tokens_of_their_own_path(executor):
    sequence = executor.open(20)
    executor.forward([Segment(sequence, [3, 1, 4])])
    executor.keep(sequence, [0, 1, 2])
    output = executor.forward([Segment(sequence, [5, 2, 0, 1], [-1, -1, 0, 2])])
    assert output.logits.numpy() == pytest.approx(rows(executor, [[4, 5], [4, 2], [5, 0], [0, 1]]))
    executor.keep(sequence, [0, 2])
    assert executor.length(sequence) == 5
    output = executor.forward([Segment(sequence, [2])])
    assert output.logits.numpy() == pytest.approx(rows(executor, [[0, 2]]))


def test_logits_are_of_the_rows_asked_for_only(executor):
    first, second = executor.open(9), executor.open(9)
    output = executor.forward([Segment(first, [1, 2, 3], logits_from=2), Segment(second, [4, 5], logits_from=2)])
    assert output.logits.numpy() == pytest.approx(rows(executor, [[2, 3]]))


def test_truncated_text_is_forgotten(executor):
    sequence = executor.open(9)
    executor.forward([Segment(sequence, [1, 2, 3])])
    executor.keep(sequence, [0, 1, 2])
    executor.truncate(sequence, 1)
    assert executor.forward([Segment(sequence, [5])]).logits.numpy() == pytest.approx(rows(executor, [[1, 5]]))


@pytest.mark.parametrize(
    ("segments", "error"),
    [
        ([], RowsError),
        ([Segment(0, [6])], RowsError),
        ([Segment(7, [1])], RowsError),
        ([Segment(0, [1]), Segment(0, [2])], RowsError),
        ([Segment(0, [1, 2], [-1, 1])], RowsError),
        ([Segment(0, [1] * 10)], CacheFullError),
    ],
)
def test_rows_that_do_not_exist_are_refused_and_change_nothing(executor, segments, error):
    sequence = executor.open(9)
    with pytest.raises(error):
        executor.forward(segments)
    assert executor.length(sequence) == 0


def test_layers_are_refused_and_closed_sequences_are_gone(executor):
    sequence = executor.open(4)
    with pytest.raises(RowsError, match="no layers"):
        executor.forward([Segment(sequence, [1])], capture=(0,))
    executor.close(sequence)
    with pytest.raises(RowsError, match="not open"):
        executor.length(sequence)
    with pytest.raises(RowsError, match="capacity"):
        executor.open(0)


def test_a_nearby_table_is_near_and_not_the_same():
    table = random_table((1,), 8)
    other = nearby(table, (2,), 0.1)
    assert 0 < np.abs(other.logits - table.logits).max() < 1
