from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from app.analysis.trace.metadata import load_metadata, metadata_document, parse_metadata
from app.analysis.trace.model import SessionMeta, Sizes
from app.errors import InvalidMetadataError

if TYPE_CHECKING:
    from collections.abc import Callable

PUBLISHED = """\
trial_name: AR
run_id: 0
dp_size: 4
dsp_size: 1
pp_size: 4
tp_size: 4
vpp_size: 1
world_size: 64
"""


def refused(document: dict[Any, Any] | str) -> InvalidMetadataError:
    read: Callable[[Any], SessionMeta] = (
        load_metadata if isinstance(document, str) else parse_metadata
    )
    with pytest.raises(InvalidMetadataError) as caught:
        read(document)
    assert caught.value.stable_code.startswith("metadata.")
    return caught.value


def test_published_keys_are_read_as_they_are() -> None:
    meta = load_metadata(PUBLISHED)
    assert meta == SessionMeta(Sizes(dp=4, pp=4, tp=4), trial_name="AR", run_id="0")


def test_dsp_is_the_context_parallel_size() -> None:
    meta = parse_metadata({"dp_size": 2, "pp_size": 1, "dsp_size": 8, "world_size": 16})
    assert meta.sizes == Sizes(dp=2, pp=1, cp=8)


def test_odd_steps_are_kept_with_why_they_are_odd() -> None:
    meta = parse_metadata({"dp": 2, "pp": 1, "odd_steps": {7: "a restart", "9": "a restart"}})
    assert meta.odd_steps == {7: "a restart", 9: "a restart"}
    assert parse_metadata(metadata_document(meta)) == meta


@pytest.mark.parametrize(
    "said",
    [[7], {"first": "a restart"}, {True: "a restart"}, {-1: "x"}, {7: ["x"]}, {1 << 70: "x"}],
    ids=str,
)
def test_odd_steps_that_are_none_are_refused(said: object) -> None:
    error = refused({"dp": 2, "pp": 1, "odd_steps": said})
    assert error.stable_code == "metadata.bad_value"


def test_our_keys_default_to_one_and_to_the_product() -> None:
    assert load_metadata('{"dp": 3, "pp": 2}').sizes == Sizes(dp=3, pp=2)


def test_a_normalized_document_gives_the_same_metadata_again() -> None:
    meta = parse_metadata(
        {
            "dp": 2,
            "pp": 2,
            "vpp": 2,
            "world": 4,
            "trial_name": "night run",
            "run_id": 17,
            "hosts": {"0": "node-a", 3: "node-b"},
            "gpus": {0: 5},
            "labels": {"team": "core", "importance": 2},
            "layers": {"per_chunk": [[4, 4], [4, 3]]},
            "started": "2026-01-02",
        }
    )
    document = metadata_document(meta)
    assert document["hosts"] == {"0": "node-a", "3": "node-b"}
    assert document["gpus"] == {"0": "5"}
    assert document["layers"] == {"per_chunk": [[4, 4], [4, 3]]}
    assert parse_metadata(document) == meta


def test_dates_of_yaml_become_text() -> None:
    meta = load_metadata("dp: 1\npp: 1\nstarted: 2026-01-02\n")
    assert meta.extra == {"started": "2026-01-02"}


@pytest.mark.parametrize("size", ["dp", "pp"])
def test_a_missing_size_is_named(size: str) -> None:
    document = {"dp": 2, "pp": 2}
    del document[size]
    error = refused(document)
    assert error.stable_code == "metadata.missing_size"
    assert [fault.column for fault in error.faults] == [size]


@pytest.mark.parametrize("value", [0, -1, 1.0, "4", True, 1 << 21, 10**5000, [4]], ids=type)
def test_a_size_that_is_none_is_refused(value: object) -> None:
    error = refused({"dp": value, "pp": 2})
    assert error.stable_code == "metadata.bad_size"
    assert error.faults[0].column == "dp"


def test_every_bad_size_is_reported() -> None:
    error = refused({"dp": 0, "pp": -2, "tp": "x"})
    assert [fault.column for fault in error.faults] == ["dp", "pp", "tp"]


def test_an_absurd_product_is_refused() -> None:
    assert refused({"dp": 1 << 15, "pp": 1 << 15}).stable_code == "metadata.bad_size"


def test_sizes_that_do_not_multiply_to_the_world_are_refused() -> None:
    error = refused({"dp": 4, "pp": 4, "tp": 2, "world": 64})
    assert error.stable_code == "metadata.world_mismatch"
    assert "32" in error.message
    assert "64" in error.message


def test_two_spellings_must_agree() -> None:
    assert parse_metadata({"dp": 2, "dp_size": 2, "pp": 1}).sizes.dp == 2
    assert refused({"dp": 2, "dp_size": 4, "pp": 1}).stable_code == "metadata.conflict"


@pytest.mark.parametrize(
    ("document", "code"),
    [
        ({"hosts": {"4": "x"}}, "metadata.rank_out_of_range"),
        ({"hosts": {"9" * 5000: "x"}}, "metadata.rank_out_of_range"),
        ({"hosts": {"-1": "x"}}, "metadata.bad_value"),
        ({"hosts": {True: "x"}}, "metadata.bad_value"),
        ({"hosts": ["a", "b"]}, "metadata.bad_value"),
        ({"gpus": {"0": 1.5}}, "metadata.bad_value"),
        ({"gpus": {"0": "x" * 256}}, "metadata.bad_value"),
        ({"labels": {"team": "a\x00b"}}, "metadata.bad_value"),
        ({"trial_name": ["x"]}, "metadata.bad_value"),
        ({"note": float("nan")}, "metadata.bad_value"),
        ({"note": 1 << 64}, "metadata.bad_value"),
        ({"note": {1, 2}}, "metadata.bad_value"),
        ({"note": "a\x00b"}, "metadata.bad_value"),
        ({"note": "\ud800"}, "metadata.bad_value"),
    ],
)
def test_other_bad_values_are_refused(document: dict[str, Any], code: str) -> None:
    assert refused({"dp": 2, "pp": 2, **document}).stable_code == code


def test_deep_nesting_is_refused() -> None:
    nested: Any = 1
    for _ in range(30):
        nested = [nested]
    assert refused({"dp": 1, "pp": 1, "note": nested}).stable_code == "metadata.bad_value"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", "metadata.missing"),
        ("null", "metadata.missing"),
        ("[1]", "metadata.malformed"),
        ("just words", "metadata.malformed"),
        ("dp: [1", "metadata.malformed"),
        ("dp: 1\ndp: 2\npp: 1\n", "metadata.malformed"),
        ("a: &x 1\ndp: *x\npp: 1\n", "metadata.malformed"),
        ("dp: !!python/object/apply:os.getcwd []\n", "metadata.malformed"),
        ("dp: \x01", "metadata.malformed"),
        ("? [1]\n: 2\n", "metadata.malformed"),
        ("[" * 10_000, "metadata.malformed"),
        ("x" * ((16 << 20) + 1), "metadata.too_large"),
        ("note: " + "x" * (256 << 10), "metadata.too_large"),
    ],
)
def test_text_that_is_no_mapping_is_refused(text: str, code: str) -> None:
    assert refused(text).stable_code == code


def test_malformed_yaml_names_its_line() -> None:
    error = refused("dp: 2\npp: 2\nhosts: {0: a\n")
    assert error.faults[0].line == 4
