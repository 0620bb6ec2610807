"""Damaged recordings of other programs give a trace or a refusal, and never another exception."""

from __future__ import annotations

import gzip
import json
import tracemalloc
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.analysis.trace.decode import decode
from app.errors import PacelineError
from tests.fuzz.recordings import BODIES, LIMITS, META, ODD, damaged, outcome
from tests.fuzz.test_bodies import edited
from tests.support.trainings.files import write_training
from tests.support.trainings.job import Kind, Style, Training
from tests.unit.analysis.trace.recordings import test_nsys
from tests.unit.analysis.trace.recordings.test_nsys_processes import emitted, node

# The same examples in every run, so that a failure can be reproduced.
bounded = settings(max_examples=40, derandomize=True, deadline=None, database=None)
# `make fuzz` damages as many recordings as traces.
CASES = 200
_edits = st.lists(
    st.tuples(
        st.integers(0, 1 << 20), st.integers(0, 12), st.binary(max_size=6) | st.sampled_from(ODD)
    ),
    min_size=1,
    max_size=5,
)


@pytest.mark.parametrize("form", BODIES)
@bounded
@given(edits=_edits)
def test_edited_bytes(form: str, edits: list[tuple[int, int, bytes]]) -> None:
    name, body = BODIES[form]
    changed = edited(body, edits)
    outcome(name, changed)
    outcome(None, changed)


@pytest.mark.parametrize("form", BODIES)
@bounded
@given(start=st.integers(0, 1 << 20), length=st.integers(0, 1 << 20))
def test_parts_of_bodies(form: str, start: int, length: int) -> None:
    name, body = BODIES[form]
    cut = start % len(body)
    outcome(name, body[:cut])
    outcome(name, body[:cut] + body[(start + length) % len(body) :])


_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 5)
    | st.integers(-(1 << 70), 1 << 70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(["", "PP:0F0", "paceline:fwd:mb=1", "ProfilerStep#3", "B", "E", "X", "7"])
    | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=4,
)
_JSON_FORMS = [name for name, (kind, _) in BODIES.items() if kind != "arrow" and "," not in name]


@pytest.mark.parametrize("form", _JSON_FORMS)
@bounded
@given(data=st.data())
def test_any_value_in_any_place(form: str, data: st.DataObject) -> None:
    name, body = BODIES[form]
    document: Any = json.loads(body)
    for _ in range(data.draw(st.integers(1, 3))):
        _replace(document, data)
    outcome(name, json.dumps(document).encode())


def _replace(document: Any, data: st.DataObject) -> None:  # noqa: ANN401 - any JSON
    """Put a random value in a random place."""
    here = document
    while True:
        keys = list(here) if isinstance(here, dict) else list(range(len(here)))
        if not keys:
            return
        key = data.draw(st.sampled_from(keys))
        if isinstance(here[key], dict | list) and data.draw(st.integers(0, 3)):
            here = here[key]
            continue
        here[key] = data.draw(_values)
        return


def test_recordings_damaged_by_many_hands_are_read_or_refused() -> None:
    found = Counter(outcome(*damaged(seed)) for seed in range(CASES))
    # Some recordings are read and some are refused.
    assert found["read"] > CASES // 20
    assert len(found) > 5


def test_undamaged_recordings_are_read() -> None:
    found = {name: outcome(kind, body) for name, (kind, body) in BODIES.items()}
    # Only the file's name gives the rank of a bare array; the second file is of a larger job.
    assert found.pop("kineto, a bare array") == "trace.unknown_rank"
    assert found.pop("arrow, file") == "trace.rank_out_of_range"
    assert set(found.values()) == {"read"}


@pytest.fixture(scope="module", params=["a rank", "a node", "ranges of PyTorch"])
def database(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("nsys")
    path = folder / "rank1.sqlite"
    if request.param == "a rank":
        return test_nsys.database(path, test_nsys.RANGES, test_nsys.KERNELS).read_bytes()
    if request.param == "a node":
        return node(path, [100, 101], [0, 1], slow=0).read_bytes()
    (folder / "traces").mkdir()
    write_training(
        Training(Kind.DDP, layers=2, kernels=2, steps=2, ranks=2), Style(), folder / "traces"
    )
    return emitted(folder / "traces", path).read_bytes()


@settings(
    bounded, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(edits=_edits, cut=st.integers(0, 1 << 20) | st.none())
def test_a_damaged_database(
    database: bytes, tmp_path: Path, edits: list[tuple[int, int, bytes]], cut: int | None
) -> None:
    path = tmp_path / "rank1.sqlite"
    body = edited(database, [(place, len(new), new) for place, _, new in edits])
    path.write_bytes(body if cut is None else body[: cut % len(body)])
    outcome("nsys", path, local=True)


DEEP = b'{"schemaVersion":1,"traceEvents":[' + b"[" * (1 << 20)
LONG = b'{"schemaVersion":1,"traceEvents":[{"name":"' + b"x" * (6 << 20)
WIDE = b'{"schemaVersion":1,"distributedInfo":[' + (b'"' + b"x" * 2000 + b'",') * 3000
MANY = b'{"schemaVersion":1,"traceEvents":[' + b'{"ph":"M"},' * 60_000 + b"0]}"


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (DEEP, "trace.bad_json"),
        (LONG, "trace.item_too_long"),
        (WIDE, "trace.item_too_long"),
        (MANY, "trace.no_rows"),
        (gzip.compress(b'{"schemaVersion":' + b" " * (30 << 20), mtime=0), "body.too_large"),
    ],
    ids=["deep", "long", "wide", "many", "bomb"],
)
def test_memory_is_bounded(body: bytes, code: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(PacelineError) as caught:
            decode(body, META, limits=LIMITS)
        assert tracemalloc.get_traced_memory()[1] < 200 << 20
    finally:
        tracemalloc.stop()
    assert caught.value.stable_code == code
