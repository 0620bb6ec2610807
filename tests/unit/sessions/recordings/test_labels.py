from __future__ import annotations

import json

import pytest

from app.analysis.trace.recordings.labels import RangeRule
from app.errors import InvalidLabelsError
from app.sessions.recordings.labels import MAX_RULES, read_labels


def test_patterns_are_in_order_with_their_lines() -> None:
    text = "# layers\n'attn\\(F\\)': fwd\n\nit (?P<step>\\d+): step\n'opt': optimizer\n"
    assert read_labels(text).rules == (
        RangeRule(r"attn\(F\)", "forward-compute", 2),
        RangeRule(r"it (?P<step>\d+)", "step", 4),
        RangeRule("opt", "optimizer", 5),
    )
    # Operation names of other recorders are accepted.
    assert read_labels("{'x': grad-all-reduce}").rules[0].op == "grads-reduce-scatter"
    assert read_labels(json.dumps({"a": "bwd"}, indent=1)).rules[0].line == 2


@pytest.mark.parametrize(
    ("text", "code", "line", "pattern", "said"),
    [
        ("a: fwd\n'x(': fwd", "bad_pattern", 2, "x(", "missing )"),
        ("a: fwd\n'(?=b)': fwd", "bad_pattern", 2, "(?=b)", "invalid perl operator"),
        ("'a{2000}': fwd", "bad_pattern", 1, "a{2000}", "repetition"),
        ("'(?P<way>F)': fwd", "bad_pattern", 1, "(?P<way>F)", "mb, mc, stage, step"),
        ("\n\na: backward-comput", "bad_value", 3, "a", "backward-compute is meant?"),
        ("a: qwert", "bad_value", 1, "a", "there are forward-compute"),
        ("a: 3", "bad_value", 1, "a", "must be a text"),
        ("a: {b: c}", "bad_value", 1, "a", "must be a text"),
        ("3: fwd", "bad_value", 1, "3", "must be a text"),
        ("[a]", "bad_value", None, None, "mapping of patterns"),
        ("{}", "bad_value", None, None, "mapping of patterns"),
        ("a: b: c", "malformed", 1, None, "not YAML"),
        ("'a': fwd\n'a': fwd", "malformed", 1, None, "twice"),
        ("'" + "a" * 1001 + "': fwd", "bad_value", 1, "a" * 1001, "at most 1000"),
    ],
)
def test_a_refusal_names_the_line_and_the_pattern(
    text: str, code: str, line: int | None, pattern: str | None, said: str
) -> None:
    with pytest.raises(InvalidLabelsError) as caught:
        read_labels(text)
    first = caught.value.faults[0]
    assert (caught.value.stable_code, first.code) == (f"labels.{code}", code)
    assert (first.line, first.column) == (line, pattern)
    assert said in caught.value.message


def test_there_are_not_too_many_patterns() -> None:
    document = {f"a{number}": "fwd" for number in range(MAX_RULES + 1)}
    with pytest.raises(InvalidLabelsError, match="at most 100"):
        read_labels(json.dumps(document))
