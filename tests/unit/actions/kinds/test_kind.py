"""Limits of actions, attacked by a person who wants machines taken out."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from app.actions.kinds.kind import (
    MAX_DATA_AGE,
    MIN_CONFIDENCE,
    PUT_BACK_RESPECTED_FOR,
    SENTENCES,
    TIME_BETWEEN_MACHINES,
    Case,
    Fleet,
    Limit,
    hard_limits,
    limits_of,
    may_be_out,
)

NOW = datetime(2026, 11, 27, 12, tzinfo=UTC)
CASE = Case(
    node="node-7",
    guessed=False,
    known=True,
    in_hand=False,
    measured_at=NOW - timedelta(minutes=5),
    confidence=0.97,
    sessions=2,
    put_back_at=None,
    confirmed=2,
    scheduler_at=NOW - timedelta(minutes=1),
)
FLEET = Fleet(NOW, nodes=100, out=frozenset(), taken_at={}, stopped=False, behind=False)


def test_a_machine_that_two_sessions_blame_for_sure_may_be_taken_out() -> None:
    assert limits_of(CASE, FLEET) == ()


@pytest.mark.parametrize(
    ("change", "limit"),
    [
        ({"guessed": True}, Limit.GUESSED),
        ({"known": False}, Limit.UNKNOWN_NODE),
        ({"is_other_project": True}, Limit.OTHER_PROJECT),
        ({"confirmed": 1}, Limit.UNCONFIRMED),
        ({"confirmed": 0}, Limit.UNCONFIRMED),
        ({"sessions": 50, "confirmed": 1}, Limit.UNCONFIRMED),
        ({"scheduler_at": NOW - MAX_DATA_AGE - timedelta(seconds=1)}, Limit.LATE_DATA),
        ({"in_hand": True}, Limit.IN_HAND),
        ({"measured_at": None}, Limit.PULSE_ALONE),
        ({"measured_at": NOW - MAX_DATA_AGE - timedelta(seconds=1)}, Limit.LATE_DATA),
        ({"confidence": None}, Limit.CONFIDENCE),
        ({"confidence": math.nan}, Limit.CONFIDENCE),
        ({"confidence": math.nextafter(MIN_CONFIDENCE, 0)}, Limit.CONFIDENCE),
        ({"sessions": 1}, Limit.SEEN_ONCE),
        ({"sessions": 0}, Limit.SEEN_ONCE),
        ({"put_back_at": NOW}, Limit.PUT_BACK),
        ({"put_back_at": NOW - PUT_BACK_RESPECTED_FOR + timedelta(seconds=1)}, Limit.PUT_BACK),
    ],
)
def test_each_thing_that_is_not_sure_keeps_a_machine_in(
    change: dict[str, object], limit: Limit
) -> None:
    assert limits_of(replace(CASE, **change), FLEET) == (limit,)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "node",
    ["", "node-[1-99]", "a,b", "-all", "ALL", "x; reboot", "$(reboot)", "n" * 300, "nöde", "a\nb"],
)
def test_no_action_for_a_name_of_more_than_one_node(node: str) -> None:
    assert Limit.NOT_ONE_NODE in hard_limits(limits_of(replace(CASE, node=node), FLEET))


def test_a_person_s_return_is_respected_for_a_day_and_no_longer() -> None:
    at = NOW - PUT_BACK_RESPECTED_FOR
    assert limits_of(replace(CASE, put_back_at=at), FLEET) == ()


@pytest.mark.parametrize(
    ("change", "limit"),
    [({"stopped": True}, Limit.STOPPED), ({"behind": True}, Limit.LATE_DATA)],
)
def test_nothing_happens_while_actions_are_stopped_or_data_are_late(
    change: dict[str, bool], limit: Limit
) -> None:
    assert limits_of(CASE, replace(FLEET, **change)) == (limit,)  # type: ignore[arg-type]


def test_a_hundred_machines_that_are_blamed_in_a_minute_lose_one() -> None:
    fleet = replace(FLEET, nodes=100_000)
    taken = []
    for second in range(100):
        now = NOW + timedelta(seconds=0.6 * second)
        fleet, case = replace(fleet, now=now), replace(CASE, node=f"node-{second}")
        if not limits_of(case, fleet):
            taken.append(case.node)
            fleet = replace(
                fleet,
                out=fleet.out | {case.node},
                taken_at={**fleet.taken_at, case.node: now},
            )
    assert taken == ["node-0"]


def test_in_a_day_of_blame_no_more_than_the_share_is_out() -> None:
    fleet, out = replace(FLEET, nodes=250), []
    for minute in range(24 * 60):
        now = NOW + timedelta(minutes=minute)
        case = replace(CASE, node=f"node-{minute}", measured_at=now, scheduler_at=now)
        fleet = replace(fleet, now=now)
        if not limits_of(case, fleet):
            out.append(minute)
            fleet = replace(
                fleet,
                out=fleet.out | {case.node},
                taken_at={**fleet.taken_at, case.node: now},
            )
    hours = int(TIME_BETWEEN_MACHINES / timedelta(minutes=1))
    assert out == [0, hours, 2 * hours, 3 * hours, 4 * hours]
    assert len(out) == may_be_out(250)


@pytest.mark.parametrize("nodes", [0, 1, 2, 49, 50, 99])
def test_of_few_machines_one_may_be_out(nodes: int) -> None:
    fleet = replace(FLEET, nodes=nodes)
    assert limits_of(CASE, fleet) == ()
    assert limits_of(CASE, replace(fleet, out=frozenset({"other"}))) == (Limit.TOO_MANY_OUT,)


def test_projects_together_may_have_the_share_of_all_known_machines_out() -> None:
    fleet = replace(FLEET, out_everywhere=3, nodes_everywhere=200)
    assert limits_of(CASE, fleet) == ()
    assert limits_of(CASE, replace(fleet, out_everywhere=4)) == (Limit.TOO_MANY_EVERYWHERE,)
    # A machine that is already out does not count twice.
    own = replace(fleet, out=frozenset({CASE.node}), out_everywhere=4)
    assert limits_of(CASE, own) == ()


def test_another_kind_of_action_on_the_same_machine_is_no_second_machine() -> None:
    fleet = replace(FLEET, nodes=2, out=frozenset({CASE.node}), taken_at={CASE.node: NOW})
    assert limits_of(CASE, fleet) == ()


def test_every_limit_has_a_sentence_and_few_are_beyond_people() -> None:
    assert set(SENTENCES) == set(Limit)
    assert hard_limits(Limit) == (
        Limit.NOT_ONE_NODE,
        Limit.GUESSED,
        Limit.UNKNOWN_NODE,
        Limit.OTHER_PROJECT,
        Limit.STOPPED,
    )
