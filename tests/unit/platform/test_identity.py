"""Refusals are counted in a bounded number of entries, and written at increasing intervals."""

from __future__ import annotations

import pytest

from app.access.guard import FIRST_S, LONGEST_S, next_wait_s
from app.platform.identity import LINES, OTHERS, ActorKind, Refusal, Refusals

# Actors that may be refused: all but the installation itself.
WHO = (ActorKind.PEER, ActorKind.TOKEN, ActorKind.PERSON)


def _of(actor: str, kind: ActorKind = ActorKind.PEER) -> Refusal:
    return Refusal(kind, actor, "GET /", "access.unauthenticated")


@pytest.mark.slow
def test_a_flood_of_peers_is_a_few_lines() -> None:
    refusals = Refusals()
    for number in range(100_000):
        refusals.note(_of(str(number)))
    refusals.note(_of("grafana", ActorKind.TOKEN))
    counted = refusals.take()
    assert len(counted) == LINES + 2
    assert sum(counted.values()) == 100_001
    [others] = [found for found in counted if found.actor == OTHERS]
    assert counted[others] == 100_000 - LINES
    assert counted[_of("grafana", ActorKind.TOKEN)] == 1
    assert not refusals.take()


def test_days_of_refusals_are_a_bounded_number_of_lines() -> None:
    wait_s, lines, now_s = FIRST_S, 0, 0.0
    while now_s < 86_400:
        now_s += wait_s
        lines += len(WHO) * (LINES + 1)
        wait_s = next_wait_s(wait_s, LINES)
    assert wait_s == LONGEST_S
    assert lines < 6000
    assert next_wait_s(wait_s, 0) == FIRST_S
