"""The server reads the pulse bodies that the client writes."""

from __future__ import annotations

import random

from app.pulse.body import read_pulse
from paceline_client.pulse.rows import Beat, HostData, Row, body_of

BEGAN_NS = 1_790_000_000_000_000_000


def rows(ranks: int, steps: int) -> list[Row]:
    """Return rows of steps of 200 ms with 1 % of noise, as ranks pass them to the sender."""
    draws = random.Random(7)  # noqa: S311 - not for secrets

    def noisy(duration_ns: int) -> int:
        return round(duration_ns * draws.gauss(1, 0.01))

    return [
        Row(
            *(step, rank, rank, 0, BEGAN_NS + 200_000_000 * step + draws.randrange(1_000_000)),
            *(noisy(200_000_000), noisy(150_000_000), noisy(30_000_000), noisy(2_000_000)),
            *(noisy(10_000_000), 0, draws.randrange(3_000, 9_000)),
        )
        for step in range(steps)
        for rank in range(ranks)
    ]


def test_rows_and_beats_of_a_host_are_read_as_they_were() -> None:
    sent = rows(3, 4)
    beats = [
        Beat(4, 0, 0, 0, BEGAN_NS + 5, "forward-compute", BEGAN_NS + 1),
        Beat(4, 1, 1, 0, BEGAN_NS + 6, "checkpoint", BEGAN_NS + 2),
        Beat(4, 2, 2, 0, BEGAN_NS + 7, "forward-compute", BEGAN_NS + 3),
    ]

    read = read_pulse(body_of("node-3", sent, beats), attempt=2)

    assert read.host == "node-3"
    assert not read.counts
    assert read.rows.attempt.tolist() == [2] * 15
    assert read.rows.phases == ("forward-compute", "checkpoint")
    assert read.rows.phase.tolist() == [-1] * 12 + [0, 1, 0]
    assert read.rows.since_ns.tolist()[12:] == [BEGAN_NS + 1, BEGAN_NS + 2, BEGAN_NS + 3]
    sent.sort(key=lambda row: (row.rank, row.step))
    for at, name in enumerate(Row._fields):
        assert getattr(read.rows, name).tolist()[:12] == [row[at] for row in sent]


def test_a_host_where_no_step_has_ended_sends_its_beats() -> None:
    beat = Beat(0, 0, 0, 0, BEGAN_NS, "x" * 300, BEGAN_NS)
    read = read_pulse(body_of("", [], [beat]), attempt=1)
    assert len(read.rows) == 1
    assert read.rows.phases == ("x" * 200,)
    assert len(read_pulse(body_of("", [], []), attempt=1).rows) == 0


def test_the_server_takes_no_rank_beyond_those_that_the_job_has() -> None:
    sent = rows(3, 4)
    beat = Beat(4, 2, 2, 0, BEGAN_NS + 7, "forward-compute", BEGAN_NS + 3)
    read = read_pulse(body_of("node-3", sent, [beat], HostData(world=2)), attempt=1)
    assert set(read.rows.rank.tolist()) == {0, 1}
    assert read.counts == {"pulse.unknown_rank": 4 + 1}
    # Without a world size in the body, that of the job's session counts.
    assert read_pulse(body_of("", sent, []), 1, world=1).counts == {"pulse.unknown_rank": 8}
    assert not read_pulse(body_of("", sent, [], HostData(world=3)), 1, world=1).counts


def test_a_row_takes_less_than_a_hundred_bytes() -> None:
    for ranks, steps in ((8, 5), (1, 25)):
        sent = rows(ranks, steps)
        assert len(body_of("node-3", sent, [])) <= 100 * len(sent)
