"""Scripts of pages get data of the server from the server, and contain no copy."""

from __future__ import annotations

import re
from pathlib import Path

from app.incidents.models.tables import DeliveryState, IncidentState
from app.platform.database.states import PlanState, SessionState, TaskState

SCRIPTS = Path(__file__).parents[3] / "frontend" / "static" / "js"
STATES = {
    str(state)
    for states in (SessionState, TaskState, PlanState, IncidentState, DeliveryState)
    for state in states
}


def listed_states(script: str) -> list[str]:
    """Return the lists in a script that contain two or more states."""
    lists = re.findall(r"\[[^][]*\]", script)
    return [text for text in lists if len(STATES & set(re.findall(r"""['"](\w+)['"]""", text))) > 1]


def test_no_script_lists_states_once_more() -> None:
    assert listed_states("new Set(['queued', 'planning'])") == ["['queued', 'planning']"]
    scripts = sorted(SCRIPTS.rglob("*.js"))
    assert len(scripts) > 10
    assert {
        path.name: found for path in scripts if (found := listed_states(path.read_text()))
    } == {}
