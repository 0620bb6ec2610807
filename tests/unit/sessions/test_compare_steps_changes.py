"""Causes that disappeared or appeared, and metadata that differ."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.sessions.compare_steps import Change, cause_changes, metadata_changes
from tests.support import reports


def test_a_cause_that_is_no_longer_named_is_gone() -> None:
    slow, healthy = reports.slow_worker(), reports.healthy()
    found = {one.cause: one for one in cause_changes(slow, healthy)}
    assert found["slow_worker"].change is Change.GONE
    assert found["slow_worker"].after is None
    assert found["slow_worker"].before == pytest.approx(slow.headline.waste, abs=0.05)
    assert {one.cause: one.change for one in cause_changes(healthy, slow)} | {} == {
        name: Change.CAME if one.change is Change.GONE else one.change
        for name, one in found.items()
    }


def test_an_unchanged_cost_is_no_change() -> None:
    slow = reports.slow_worker()
    assert {one.change for one in cause_changes(slow, slow)} == {Change.SAME}


def test_a_cause_that_costs_half_is_less() -> None:
    slow = reports.slow_worker()
    half = replace(slow.causes[0], cost_s=(slow.causes[0].cost_s or 0.0) / 2)
    after = reports.changed(slow, causes=(half,))
    assert cause_changes(slow, after)[0].change is Change.LESS
    assert cause_changes(after, slow)[0].change is Change.MORE


def test_every_field_that_differs_is_listed_and_the_others_are_counted() -> None:
    before = {"dp": 2, "pp": 2, "labels": {"team": "x"}, "stages": [1, 2], "hosts": {"0": "n"}}
    after = {"dp": 4, "pp": 2, "labels": {}, "stages": [2, 1], "hosts": {"0": "n"}, "gc": True}
    found = metadata_changes(before, after)
    assert [(one.field, one.before, one.after) for one in found.changed] == [
        ("dp", "2", "4"),
        ("gc", None, "yes"),
        ("labels.team", "x", None),
        ("stages", "1, 2", "2, 1"),
    ]
    assert found.equal == 1


def test_hosts_that_went_and_came_are_one_line() -> None:
    before = {"hosts": {"0": "a", "1": "b", "2": "c"}}
    assert metadata_changes(before, before).changed == ()
    [one] = metadata_changes(before, {"hosts": {"0": "a", "1": "b", "2": "d"}}).changed
    assert (one.before, one.after) == ("c", "d")
    [one] = metadata_changes(before, {"hosts": {"0": "b", "1": "a", "2": "c"}}).changed
    assert one.after == "the same, 2 ranks in other places"
