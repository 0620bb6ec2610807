"""The places of workers for the page's script; `tests/js/sessions/places.test.js` reads them."""

from __future__ import annotations

import json
from pathlib import Path

from app.analysis.report.document import Report
from app.sessions.pages.findings import places_of
from tests.support.reports import changed

CASES = Path(__file__).parents[3] / "js" / "session" / "places_cases.json"


def test_the_script_gets_the_cases_that_its_own_test_reads(slow_worker: Report) -> None:
    for case in json.loads(CASES.read_text()):
        by_rank = case["rank"]
        report = changed(
            slow_worker,
            sizes__dp=len(by_rank),
            sizes__pp=len(by_rank[0]),
            sizes__tp=1,
            workers__rank=by_rank,
            hosts={int(rank): host for rank, host in case["hosts"].items()},
            gpus={int(rank): gpu for rank, gpu in case["gpus"].items()},
        )

        assert json.loads(json.dumps(places_of(report))) == case["places"]


def test_hosts_of_many_workers_take_a_few_bytes_each(slow_worker: Report) -> None:
    dp, pp = 256, 16
    by_rank = [[stage * dp + rank for stage in range(pp)] for rank in range(dp)]
    report = changed(
        slow_worker,
        sizes__dp=dp,
        sizes__pp=pp,
        sizes__tp=1,
        workers__rank=by_rank,
        hosts={rank: f"node-{rank // 8}" for rank in range(dp * pp)},
        gpus={rank: str(rank % 8) for rank in range(dp * pp)},
    )

    assert len(json.dumps(places_of(report))) < 6 * dp * pp
