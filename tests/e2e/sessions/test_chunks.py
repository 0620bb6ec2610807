"""The page of a session in chunks, from its first chunk to its report."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import httpx
import numpy as np
from playwright.sync_api import expect
from sqlalchemy import select

from app.analysis.trace.encode import to_parquet
from app.platform.database.task_runs import TaskRun
from app.platform.tasks.runs import claim
from app.sessions.analyze import analyze_session
from app.sessions.chunks.absorb import absorb
from tests import factories
from tests.e2e.looking import keep, wait_for_figures
from tests.support.served import client_of
from tests.support.sessions import small_trace

if TYPE_CHECKING:
    from app.platform.container import Container
    from tests.e2e.visiting import Visitor

SESSION = "/api/v1/jobs/llm/attempts/1/sessions/1"


def test_a_session_in_chunks_arrives_and_becomes_its_report_without_a_reload(
    container: Container, site: str, visitor: Visitor
) -> None:
    trace = small_trace()
    with client_of(site) as client:

        def put(rank: int, number: int = 0) -> httpx.Response:
            body = to_parquet(factories.select(trace, trace.rank == rank))
            return client.put(
                f"{SESSION}/chunks/rank-{rank}/{number}",
                content=body,
                params={"dp": 2, "pp": 2},
            )

        ranks = np.unique(trace.rank).tolist()
        answers = [put(rank) for rank in ranks]
        # The same chunk again, with another number.
        answers.append(put(ranks[0], 1))
        client.put(f"{SESSION}/chunks/rank-0/2", content=b"junk", params={"dp": 2, "pp": 2})
        assert {answer.status_code for answer in answers} == {202}
        while absorb(container):
            pass

        page = visitor.open(f"{site}/sessions/{answers[0].json()['session']}")
        expect(page.locator("#live")).to_have_text("Live")
        expect(page.locator("h1")).to_have_text(
            re.compile(r"Session 1 is arriving: 5\schunks of 4\sproducers so far")
        )
        expect(page.locator(".verdict")).to_contain_text("unless another chunk comes")
        keep(page, "state-arriving")
        page.evaluate("window.marked = true")

        assert client.post(f"{SESSION}/seal").status_code == 202
    expect(page.locator("main")).to_have_attribute("data-status", "queued")
    with container.uow() as tx:
        run = tx.session.execute(select(TaskRun.id)).scalar_one()
    held = claim(container, run)
    assert held is not None
    analyze_session(container, held)
    expect(page.locator("main")).to_have_attribute("data-status", "analyzed")
    wait_for_figures(page)
    expect(page.locator("table.coverage")).to_contain_text("Operations sent twice, dropped")
    expect(page.locator("table.coverage")).to_contain_text("chunk rank-0/1")
    assert page.evaluate("window.marked === true")
