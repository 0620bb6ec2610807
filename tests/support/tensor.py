"""A job with a tensor-parallel group of four ranks, as a server sees it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import httpx

HEALTHY = (1.0, 1.0, 1.0, 1.0)
SLOW = (8.0, 1.0, 1.0, 1.0)
# Seconds of a step that do not depend on the number of columns.
FIXED = 0.2


@dataclass
class TrainingJob:
    """Reports the steps of a group, and applies the plans that it gets."""

    client: httpx.Client
    name: str = "llm"
    group: str = "0-0"
    says: dict[str, Any] = field(
        default_factory=lambda: {
            "attempt": 1, "world_size": 4, "columns": 1000, "max_gamma": 0.25, "apply": True,
        }
    )  # fmt: skip
    step: int = 0
    plan: dict[str, Any] | None = None
    known: int = 0

    @property
    def address(self) -> str:
        """Return the path of the group's resource."""
        return f"/api/v1/jobs/{self.name}/tp/{self.group}"

    def body(self, *times: float, **changes: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
        """Return the report of a step, whose times without a plan would be `times`."""
        matmul = [time - FIXED for time in times]
        shown = list(times)
        if self.plan is not None:
            for n, entry in enumerate(self.plan["ranks"]):
                left = 1000 - entry["resized_columns"] - entry["migrated_columns"]
                matmul[n] *= (left + entry["received_columns"]) / 1000
                shown[n] = FIXED + matmul[n]
        return {
            **self.says,
            "step": self.step,
            "times_s": shown,
            "matmul_s": matmul,
            "plan_version": None if self.plan is None else self.plan["version"],
            "known_version": self.known,
        } | changes

    def send(self, *times: float, **changes: Any) -> httpx.Response:  # noqa: ANN401 - JSON
        """Run a step and report it."""
        self.step += 1
        return self.client.post(f"{self.address}/timings", json=self.body(*times, **changes))

    def report(self, *times: float, steps: int = 1) -> dict[str, Any] | None:
        """Run and report steps, and apply new plans; return the newest one."""
        came = None
        for _ in range(steps):
            response = self.send(*times)
            assert response.status_code == 202, response.text
            plan = response.json()["plan"]
            if plan is not None:
                self.take(plan)
                came = plan
        return came

    def take(self, plan: dict[str, Any]) -> None:
        """Apply a plan at the step's boundary, and acknowledge it."""
        self.known = plan["version"]
        if plan["apply"]:
            self.plan = plan
            acked = self.ack(plan["version"])
            assert acked.status_code == 204, acked.text

    def ack(self, version: int, **changes: Any) -> httpx.Response:  # noqa: ANN401 - JSON
        """Acknowledge a version of the plan."""
        body = {
            "attempt": self.says["attempt"], "step": self.step, "ranks": [0, 1, 2, 3],
            "applied": True,
        } | changes  # fmt: skip
        return self.client.post(f"{self.address}/plan/{version}/ack", json=body)

    def ask(self, **query: Any) -> httpx.Response:  # noqa: ANN401 - of the address
        """Request a newer plan, without waiting for one."""
        parameters = {"attempt": self.says["attempt"], "after": self.known, "wait_s": 0} | query
        return self.client.get(f"{self.address}/plan", params=parameters)

    def switch(self, mode: str, **changes: Any) -> httpx.Response:  # noqa: ANN401 - JSON
        """Change the mode of the job's plans."""
        body = {"mode": mode, "by": "ann"} | changes
        return self.client.put(f"/api/v1/jobs/{self.name}/tp/mode", json=body)
