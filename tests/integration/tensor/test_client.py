"""The client of a training job and the server understand each other's documents."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from app.platform.database.states import TensorPlanState
from app.tensor.models import TensorPlan
from paceline_client.tensor.plan import Method
from paceline_client.tensor.service import Acknowledgement, Peer, Service
from tests.support.tensor import HEALTHY, SLOW, TrainingJob
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    import httpx

    from app.platform.container import Container


def plans(container: Container) -> list[tuple[int, TensorPlanState, int | None]]:
    with container.engine.connect() as connection:
        rows = connection.execute(TensorPlan.__table__.select().order_by(TensorPlan.version))
        return [(row.version, row.state, row.applied_step) for row in rows]


def test_the_client_reports_gets_a_plan_and_acknowledges_it(
    container: Container, client: httpx.Client
) -> None:
    job = TrainingJob(client, name="llm 7b", group="0-2")
    job.report(*HEALTHY)
    job.switch("apply")
    peer = Peer(str(client.base_url).rstrip("/"), job.name, job.group, job.says["attempt"])
    with closing(Service(peer, size=4)) as service:

        def newer(after: int) -> bool:
            """Run a step; the client's thread sends the newest report only."""
            job.step += 1
            service.report(job.body(*SLOW))
            found = service.offer()
            return found is not None and found.plan.version > after

        wait_for(lambda: newer(0), "a plan")
        offer = service.offer()
        assert offer is not None
        assert offer.applies
        assert offer.plan.method is Method.SEMI
        assert offer.plan.size == 4
        assert sum(count for _, count in offer.plan.ranks[0].to) > 0

        service.acknowledge(Acknowledgement(offer.plan.version, job.step, applied=True))
        wait_for(lambda: plans(container)[0][1] is TensorPlanState.IN_FORCE, "acknowledgement")

        refusal = Acknowledgement(offer.plan.version, 0, applied=False, reason="no room")
        service.acknowledge(refusal)
        wait_for(lambda: plans(container)[0][1] is TensorPlanState.REFUSED, "refusal")
        wait_for(lambda: newer(offer.plan.version), "a newer plan")
