"""The switch of a job's plans: advice, or application."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends
from pydantic import BaseModel

from app.api.frame.docs import described_body
from app.api.frame.routers import api_router
from app.api.tensor.bodies import read_body
from app.api.tensor.waiting import Waits
from app.auth.here import Here
from app.db.states import TensorMode
from app.inputs.tensor.timings import WrittenSwitch, parse_switch
from app.services.container import Container
from app.services.tensor.groups import Switch
from app.services.tensor.switches import Switched, read_switch, switch_plans


class SwitchBody(BaseModel):
    """What holds of a job's plans, and who switched them so, newest first."""

    mode: TensorMode
    max_gamma: float | None
    expires_after_steps: int
    history: list[Switched]


def router() -> APIRouter:
    """Return the routes."""
    routes = api_router("tensor parallelism", "/api/v1/jobs/{job}/tp/mode")

    def read(container: Container, job: str) -> SwitchBody:
        with container.reading() as tx:
            switch, switched = read_switch(tx, job)
        return SwitchBody(
            mode=switch.mode,
            max_gamma=switch.max_gamma,
            expires_after_steps=switch.expires_after_steps,
            history=list(switched),
        )

    @routes.get("", summary="Whether a job's tensor-parallel plans are applied")
    def get_mode(container: Here, job: str) -> SwitchBody:
        return read(container, job)

    @routes.put(
        "",
        summary="Switch a job's tensor-parallel plans",
        openapi_extra=described_body(WrittenSwitch),
    )
    def put_mode(
        container: Here,
        waiting: Waits,
        job: str,
        body: Annotated[object, Depends(read_body)],
    ) -> SwitchBody:
        """Advise only, or let the job apply plans where its own code allows that too.

        `max_gamma` only lowers the accuracy budget of the job's own code.
        """
        wanted = parse_switch(body)
        switch = Switch(TensorMode(wanted.mode), wanted.max_gamma, wanted.expires_after_steps)
        for group in switch_plans(container, job, switch, wanted.by):
            waiting.changed((container.project_id, job, group))
        return read(container, job)

    return routes
