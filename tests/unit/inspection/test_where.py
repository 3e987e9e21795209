"""The filter language: what it selects, and how it refuses what it cannot mean."""

from __future__ import annotations

import pyarrow as pa
import pytest

from ray_jobs.core.errors import ConfigError
from ray_jobs.core.schemas import SAMPLES
from ray_jobs.inspection.filters import to_filter
from ray_jobs.inspection.where import MOST_CHARS, MOST_NESTED
from tests.sample_rows import sample

ROWS = [
    sample(0, n_output_tokens=50, output_ids=[7, 12]),
    sample(1, n_output_tokens=150, flags=["truncated"], closed="never", finish_reason="length", matched_stop=None),
    sample(2, n_output_tokens=200, flags=["repetition", "truncated"], closed="never", source='it\'s "x"'),
    sample(3, [("content", "Five. 100% sure")], n_output_tokens=300, latency_s=2.5, output_ids=[2, 71]),
    sample(4, n_output_tokens=100, tool_calls="[]", closed="implicit_tool"),
]
TABLE = pa.Table.from_pylist(ROWS, SAMPLES)

SELECTED = {
    "closed == 'never'": [1, 2],
    "closed == 'never' and n_output_tokens > 150": [2],
    "closed == 'never' and n_output_tokens > 100 and 'truncated' in flags": [1, 2],
    "'repetition' in flags": [2],
    "'truncated' not in flags": [0, 3, 4],
    "not 'truncated' in flags": [0, 3, 4],
    "closed in ('never', 'absent')": [1, 2, 3],
    "closed in ['never', 'absent',]": [1, 2, 3],
    "closed not in ('never', 'absent')": [0, 4],
    "n_output_tokens in (50, 100.0)": [0, 4],
    # and binds closer than or, not closer than and
    "closed == 'absent' or closed == 'never' and n_output_tokens == 150": [1, 3],
    "(closed == 'absent' or closed == 'never') and n_output_tokens == 150": [1],
    "not closed == 'never' and n_output_tokens <= 100": [0, 4],
    "not (closed == 'never' and n_output_tokens == 150)": [0, 2, 3, 4],
    "not not closed == 'absent'": [3],
    "100 < n_output_tokens <= 200": [1, 2],
    "100 <= n_output_tokens": [1, 2, 3, 4],
    "n_output_tokens >= 1.5e2": [1, 2, 3],
    "n_output_tokens > -1": [0, 1, 2, 3, 4],
    "n_output_tokens < 9000000000000000000": [0, 1, 2, 3, 4],
    "latency_s == 2.5": [3],
    "n_output_tokens == n_prompt_tokens": [],
    "reasoning == null": [3],
    "reasoning != null": [0, 1, 2, 4],
    "null == matched_stop": [1],
    "matched_stop in (null, 'x')": [1],
    # a null is never equal, so it always differs
    "matched_stop == 'x'": [],
    "matched_stop != 'x'": [0, 1, 2, 3, 4],
    "not matched_stop == 'x'": [0, 1, 2, 3, 4],
    "reasoning > ''": [0, 1, 2, 4],
    "not reasoning > ''": [3],
    "tool_calls == '[]'": [4],
    "tool_calls != '[]'": [0, 1, 2, 3],
    "'two' in reasoning": [0, 1, 2, 4],
    "'two' not in reasoning": [3],
    "'100%' in content": [3],
    "'.*' in content": [],
    "7 in output_ids": [0],
    "12 in output_ids and not 1 in output_ids": [0],
    "started_at > '2025-01-01T00:02'": [3, 4],
    "started_at <= '2025-01-01T01:01+01:00'": [0, 1],
    "'2025-01-02' < started_at": [],
    r"source == 'it\'s \"x\"'": [2],
    'source == "it\'s \\"x\\""': [2],
    "true": [0, 1, 2, 3, 4],
    "false or closed == 'absent'": [3],
    "((((closed))) == ('absent'))": [3],
    "  closed=='absent'\n": [3],
}


@pytest.mark.parametrize(("text", "numbers"), SELECTED.items(), ids=SELECTED)
def test_it_selects(text: str, numbers: list[int]) -> None:
    found = TABLE.filter(to_filter(text))
    assert found["row_id"].to_pylist() == [ROWS[number]["row_id"] for number in numbers]


REFUSED = {
    # text: (what the rule says, position counted from 1)
    "closed = 'never'": ("an equality is ==", 8),
    "closed == 'never": ("the quote is not closed", 11),
    "closed == never": ("there is no field never", 11),
    "closed == 'nevr'": ("closed has only the words explicit, implicit_tool, never, absent", 11),
    "'trunc' in flags": ("flags has only the words", 1),
    "clsed == 'never'": ("there is no field clsed", 1),
    "closed < 3": ("compares a text with a number", 8),
    "n_output_tokens == 'many'": ("compares a number with a text", 17),
    "n_output_tokens == source": ("compares a number with a text", 17),
    "n_output_tokens == started_at": ("compares a number with a time", 17),
    "started_at > 3": ("compares a time with a number", 12),
    "started_at > source": ("compares a time with a text", 12),
    "started_at > 'noon'": ("a time is compared with a text such as", 14),
    "flags == 'truncated'": ("this is a list of texts", 1),
    "segments == 'x'": ("this is a list of segments", 1),
    "'x' in segments": ("segments is a list of segments: nothing is in it", 8),
    "'x' in n_output_tokens": ("n_output_tokens is a number: nothing is in it", 8),
    "3 in flags": ("a text can be in it, not a number", 1),
    "'3' in output_ids": ("a number can be in it, not a text", 1),
    "replica in content": ("a text can be in it", 1),
    "closed in 'never'": ("needs a field or a list", 11),
    "closed in ()": ("needs a value or a field, not ')'", 12),
    "closed in (3)": ("compares a text with a number", 8),
    "closed in ('never'": ("needs ')', not 'the end'", 19),
    "closed == true": ("no field is true or false", 11),
    "reasoning < null": ("null can only be compared with == and !=", 11),
    "1 == 1": ("one side must be a field", 3),
    "flags": ("stands alone", 1),
    "not flags": ("stands alone", 5),
    "closed == 'never' and 3": ("stands alone", 23),
    "(closed == 'never') == 'x'": ("a condition cannot be compared", 9),
    "n_output_tokens > 100000000000000000000": ("the number is too large", 19),
    "n_output_tokens > 100 100": ("cannot be read near '100'", 23),
    "n_output_tokens >": ("needs a value or a field, not 'the end'", 18),
    "and": ("needs a value or a field, not 'and'", 1),
    "": ("needs a value or a field, not 'the end'", 1),
    "(closed == 'never'": ("needs ')'", 19),
    "closed == 'never')": ("cannot be read near ')'", 18),
    "__import__('os').system('true')": ("cannot be read near", 17),
    "closed.upper == 'x'": ("cannot be read near '.upper == '", 7),
    "closed == 'never'; true": ("cannot be read near ';", 18),
    "closed not 'never'": ("needs 'in'", 12),
    "\x1b[2J": ("cannot be read near '\\x1b[2J'", 1),
}


@pytest.mark.parametrize(("text", "said"), REFUSED.items(), ids=lambda value: repr(value)[:60])
def test_it_refuses_in_one_line_with_position_and_fields(text: str, said: tuple[str, int]) -> None:
    with pytest.raises(ConfigError) as refused:
        to_filter(text)
    rule, at = said
    assert rule in refused.value.rule
    assert refused.value.rule.endswith(f", at character {at}")
    line = str(refused.value)
    assert line.isprintable()
    assert all(name in refused.value.action for name in SAMPLES.names)
    assert line.startswith("inspect.where=")


@pytest.mark.parametrize(
    "text",
    [
        "(" * 500 + "true" + ")" * 500,
        "not " * 490 + "true",
        "(" * 1000,
        "((((closed == 'never' or " * 70,
    ],
    ids=["parentheses", "not", "open", "or"],
)
def test_hostile_nesting_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=f"is nested deeper than {MOST_NESTED}"):
        to_filter(text[:MOST_CHARS])


def test_a_hostile_length_is_refused_and_the_most_is_not() -> None:
    part = "turn<1or "
    longest = part * ((MOST_CHARS - 6) // len(part)) + "turn<1"
    assert TABLE.filter(to_filter(longest)).num_rows == len(ROWS)
    with pytest.raises(ConfigError, match=f"may have at most {MOST_CHARS} characters"):
        to_filter(part * 300 + "turn<1")
    deep = "(" * MOST_NESTED + "closed == 'absent'" + ")" * MOST_NESTED
    assert TABLE.filter(to_filter(deep)).num_rows == 1
