"""Bodies: JSON that programs can handle, and nothing else."""

import pytest

from pilotfish.server.body import MAX_DEPTH, parse
from pilotfish.server.errors import ApiError


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "is not JSON"),
        (b"{", "is not JSON"),
        (b'{"a": \xff}', "is not UTF-8: invalid start byte at byte 6"),
        (b'"\xc3"', "is not UTF-8"),
        (b"[NaN]", "NaN is no JSON number"),
        (b"[-Infinity]", "no JSON number"),
        (b"1" * 5000, "is not JSON"),
        (b"[" * 1_000_000, "nested too deeply"),
        (b'{"a":' * 1_000_000, "nested too deeply"),
        (b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1), f"at most {MAX_DEPTH} levels"),
        (b'["a\\ud800"]', "half of a surrogate pair"),
        (b'{"\\uDC00": 1}', "half of a surrogate pair"),
        (b'{"a": [{"b": "\\udfff x"}]}', "half of a surrogate pair"),
    ],
)
def test_refused_bodies_say_why(body, message):
    with pytest.raises(ApiError, match="the body") as caught:
        parse(body)
    assert caught.value.status_code == 400
    assert message in caught.value.message


def test_everything_else_is_read():
    deep = b"[" * (MAX_DEPTH - 1) + b"]" * (MAX_DEPTH - 1)
    assert parse(deep) is not None
    assert parse(b'{"a": ["\\ud834\\udd1e", "\xc3\xb6", 1e3, 9007199254740993]}') == {
        "a": ["\U0001d11e", "ö", 1000.0, 9007199254740993]
    }
