"""Storage of a pulse: blocks lose nothing, and sums are right."""

from __future__ import annotations

import numpy as np
import pytest

from app.analysis.pulse import packing as packed
from app.analysis.pulse.columns import ARRAYS, NO_BEAT, Pulses, Steps
from app.analysis.pulse.detector import Detector
from app.analysis.pulse.packing import Places, from_block, places_from, rows_of, to_block
from app.analysis.pulse.rollups import Sums, from_bytes, to_bytes
from app.analysis.synthesis.job import stream
from app.analysis.synthesis.pulse_job import PulseDials, PulseJob
from app.errors import UnknownDocumentError

DIALS = PulseDials(dp=4, pp=2, steps=60, noise=0.02)


def _rows() -> Pulses:
    rows = PulseJob.healthy(DIALS, stream(3, "kept")).rows()
    return rows.take(np.argsort(rows.time_ns, kind="stable"))


def _whole(rows: Pulses) -> list[Steps]:
    return [*Detector().advance(rows).steps]


def _sorted(rows: Pulses) -> Pulses:
    return rows.take(np.lexsort((rows.time_ns, rows.step, rows.rank)))


def test_columns_of_any_values_come_back() -> None:
    limits = np.iinfo(np.int64)
    columns = {
        "none": np.empty(0, np.int64),
        "wide": np.array([limits.min, limits.max, 0, -1], np.int64),
        "same": np.full(300, 7, np.int64),
        "steps": np.arange(-1000, 1000, 7, dtype=np.int64),
    }
    back, more = packed.unpack(packed.pack(columns, steps=("steps", "wide"), more={"a": ["b"]}))
    assert more == {"a": ["b"]}
    for name, values in columns.items():
        np.testing.assert_array_equal(back[name], values)


def test_a_later_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed, "WRITES", 2)
    body = packed.pack({})
    monkeypatch.undo()
    with pytest.raises(UnknownDocumentError):
        packed.unpack(body)


def test_a_block_has_every_row_of_the_steps_and_the_beats() -> None:
    rows = _rows()
    beats = rows.take(slice(0, 5))
    phase = np.zeros(5, np.int64)
    beats = Pulses(
        **{name: getattr(beats, name) for name in ARRAYS if name not in {"phase", "since_ns"}},
        phase=phase,
        since_ns=beats.time_ns - 7,
        phases=("forward",),
    )
    for part in (rows, beats):
        back = from_block(to_block(part))
        assert back.phases == part.phases
        for name in ARRAYS:
            np.testing.assert_array_equal(getattr(back, name), getattr(_sorted(part), name))
    assert len(to_block(rows)) < 30 * len(rows)


def test_rows_of_whole_steps_are_those_that_came() -> None:
    rows = _rows()
    (whole,) = _whole(rows)
    back = _sorted(rows_of(whole, slice(None)))
    sent = _sorted(rows.take(np.isin(rows.step, whole.steps)))
    assert (back.phase == NO_BEAT).all()
    for name in ARRAYS:
        np.testing.assert_array_equal(getattr(back, name), getattr(sent, name))


def test_sums_are_the_same_however_steps_are_cut() -> None:
    (whole,) = _whole(_rows())
    together = Sums.of(whole, slice(None))
    parts = Sums.of(whole, slice(0, 7)).plus(Sums.of(whole, slice(7, 40)))
    parts = from_bytes(to_bytes(parts)).plus(Sums.of(whole, slice(40, None)))
    assert (parts.steps, parts.worst_ns, parts.tokens) == (
        together.steps,
        together.worst_ns,
        together.tokens,
    )
    np.testing.assert_array_equal(parts.ranks, together.ranks)
    np.testing.assert_array_equal(parts.counted, together.counted)
    np.testing.assert_allclose(parts.against_peers, together.against_peers, atol=1e-4)
    assert parts.median_ns == together.median_ns
    assert parts.high_ns == together.high_ns
    assert parts.lost_ns == pytest.approx(together.lost_ns, abs=4)


def test_sums_say_what_they_are_of() -> None:
    (whole,) = _whole(_rows())
    sums = Sums.of(whole, slice(None))
    step_ns = whole.measures["step_ns"]
    assert sums.median_ns == pytest.approx(np.median(np.median(step_ns, axis=1)), rel=0.005)
    assert sums.worst_ns == step_ns.max()
    assert sums.high_ns >= sums.median_ns
    # All ranks of a replica have the same tokens, so those of one stage are summed.
    tokens = whole.measures["tokens"][:, whole.pp_ranks == 0].sum()
    assert sums.tokens == tokens


def test_a_slow_rank_is_named_and_what_it_costs_is_lost() -> None:
    (whole,) = _whole(_rows())
    compute = whole.measures["compute_ns"]
    compute[:, 5] *= 1.5
    before = Sums.of(whole, slice(0, 1)).lost_ns
    sums = Sums.of(whole, slice(None))
    (slowest, ratio), *_ = sums.slowest(3)
    assert slowest == whole.ranks[5]
    assert ratio == pytest.approx(1.5, rel=0.05)
    extra = 0.5 * np.median(compute[:, 4]) * len(whole.ranks)
    assert before == pytest.approx(extra, rel=0.2)


def test_a_rank_without_peers_has_no_ratio() -> None:
    rows = PulseJob.healthy(PulseDials(dp=1, pp=4, steps=60), stream(3, "kept")).rows()
    sums = Sums.of(_whole(rows.take(np.argsort(rows.time_ns, kind="stable")))[0], slice(None))
    assert np.isnan(sums.against_peers).all()
    assert sums.slowest(5) == []
    assert sums.lost_ns == 0


def test_places_of_ranks_are_kept_and_others_are_unknown() -> None:
    ranks = np.array([5, 1, 3])
    places = Places.of(ranks, np.array([1, 0, 0]), {1: "b", 5: "a", 9: "c"})
    assert (
        places.to_bytes()
        == Places.of(ranks[::-1], np.array([0, 0, 1]), {5: "a", 1: "b"}).to_bytes()
    )
    kept = places_from(places.to_bytes())
    assert kept.ranks.tolist() == [1, 3, 5]
    assert kept.hosts == ("a", "b")
    some = kept.of_ranks(np.array([0, 1, 3, 5, 7]))
    assert some.stages.tolist() == [-1, 0, 0, 1, -1]
    assert some.host_of.tolist() == [-1, 1, -1, 0, -1]
    nowhere = places_from(None).of_ranks(np.array([4]))
    assert (nowhere.stages.tolist(), nowhere.host_of.tolist(), nowhere.hosts) == ([-1], [-1], ())
