"""The demo's plan: a pipeline for a cluster of two generations of GPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from app.db.states import PlanState

if TYPE_CHECKING:
    import threading

    from app.cli.server import Server

_LOOK_S: Final = 0.5
_LAYER: Final = {
    "forward_ms": 4.2,
    "backward_ms": 8.6,
    "parameter_bytes": 4e8,
    "output_bytes": 3.2e7,
    "stored_activation_bytes": 2.2e8,
}
REQUEST: Final[dict[str, Any]] = {
    "name": "dense-34b on new and old GPUs",
    "time_limit_s": 20,
    "spec": {
        "model": {"layers": [_LAYER] * 24},
        "devices": [
            {"type": "h100", "nodes": 2, "gpus_per_node": 4, "speed": 2.2, "memory_bytes": 8e10},
            {"type": "a100", "nodes": 2, "gpus_per_node": 4, "memory_bytes": 8e10},
        ],
        "microbatches": 32,
    },
}


def ask_for_plan(server: Server, leaving: threading.Event) -> None:
    """Ask for the plan and wait for it; asked again it is the same one.

    Parameters
    ----------
    leaving : Event
        Ends the waiting.
    """
    plan = server.exchange("POST", "/api/v1/plans", REQUEST)["plan"]
    while server.get(f"/api/v1/plans/{plan}")["state"] in PlanState.UNDERWAY:
        if leaving.wait(_LOOK_S):
            return
