from __future__ import annotations

import json

import pytest

from app.analysis.documents import (
    MOST_CHARS,
    MOST_YAML_CHARS,
    UnreadableDocumentError,
    load_document,
)
from tests.support.equal_hashes import equal_hashes


def refused(text: str) -> UnreadableDocumentError:
    with pytest.raises(UnreadableDocumentError) as caught:
        load_document(text)
    return caught.value


@pytest.mark.parametrize(
    "text", ["a: [1, 2.5]\nb: {c: yes}\n", '{"a": [1, 2.5], "b": {"c": true}}']
)
def test_yaml_and_json_say_the_same(text: str) -> None:
    assert load_document(text) == {"a": [1, 2.5], "b": {"c": True}}


def test_json_may_be_longer_than_yaml() -> None:
    numbers = list(range(MOST_YAML_CHARS // 4))
    assert load_document(json.dumps(numbers)) == numbers
    assert refused("a: " + json.dumps(numbers)).code == "too_large"


def test_no_document_is_over_the_limit() -> None:
    assert refused('"' + "x" * MOST_CHARS + '"').code == "too_large"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a: 1\nb: 2\na: 3\n", 1),
        ("x:\n  a: 1\n  a: 2\n", 2),
        ("a: &one [1]\nb: *one\n", 2),
        ("a: 1\nb: [\n", 3),
        ("a: !!python/object/apply:os.getcwd []\n", 1),
    ],
)
def test_a_fault_of_yaml_has_its_line(text: str, line: int) -> None:
    error = refused(text)
    assert (error.code, error.line) == ("malformed", line)


@pytest.mark.parametrize(
    "text", ['{"a": 1, "a": 2}', '{"a": NaN}', '{"a": -Infinity}', '{"a": 1e999}', "[" * 100_000]
)
def test_json_that_is_none_is_not_read_as_yaml_instead(text: str) -> None:
    assert refused(text).code == "malformed"


def test_aliases_that_multiply_are_refused_before_they_do() -> None:
    doubled = "".join(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]\n" for i in range(1, 60))
    assert refused("a0: &a0 [1]\n" + doubled).message == "aliases are not accepted"


@pytest.mark.parametrize("opening", ["- ", "[", "{a: ", "? "])
def test_deep_nesting_is_refused_where_it_begins_to_be_deep(opening: str) -> None:
    # The depth is checked first, because YAML's scanner would take seconds for the whole text.
    assert refused(opening * 50_000).message.startswith("nested ")


@pytest.mark.parametrize("number", ["1" * 500, "-" + "1:" * 300 + "1", "0x" + "f" * 500])
def test_numbers_of_hundreds_of_digits_are_refused(number: str) -> None:
    error = refused(f"a: 1\nb: {number}\n")
    assert (error.code, error.line) == ("malformed", 2)
    assert load_document(f"a: '{number}'") == {"a": number}


def test_keys_of_yaml_with_equal_hashes_are_refused_with_the_line() -> None:
    error = refused("a: 1\n" + "".join(f"{number}: 1\n" for number in equal_hashes(2000)))
    assert (error.message, error.line) == ("a key is an integer beyond 64 bits", 6)
