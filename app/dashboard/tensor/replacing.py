"""What replacing the slow node would cost a job, and when it has paid."""

from __future__ import annotations

from typing import Final

from app.analysis.mitigation.tensor.document import MitigationDocument
from app.dashboard.ui.format import age, count, percent
from app.services.tensor.read import GroupView

_HOUR_S: Final = 3600.0
# Less than this is within what T is measured to.
_LEAST_GAIN: Final = 0.005
# From here on a gain is told in whole per cent.
_ROUND: Final = 0.02


def replace_title(view: GroupView, document: MitigationDocument, where: str) -> str:
    """Return what a replacement would bring; nothing where no rank straggles."""
    if not document.stragglers:
        return ""
    gain = _gain(view, document)
    if gain < _LEAST_GAIN:
        return f"Replacing {where} would gain no more than the plan"
    again = " again" if view.row.latest.plan_version is not None else ""
    return f"Or replace {where}: {percent(gain, 0 if gain >= _ROUND else 1)} less{again}, no loss"


def replace_note(view: GroupView, document: MitigationDocument) -> str:
    """Return what the restart costs, and after how long it has paid."""
    restart, gain = view.restart, _gain(view, document)
    cost = f"about {age(restart.takes_s)} of restart"
    if restart.gpus:
        hours = restart.gpus * restart.takes_s / _HOUR_S
        spent = count(round(hours)) if hours >= 1 else f"{hours:.1g}"
        cost += f", {spent} GPU-hours of this job"
    parts = [f"Replacing costs {cost}"]
    if gain >= _LEAST_GAIN:
        # By then the steps would have taken as long without it, as they and the restart took with.
        pays_s = restart.takes_s / gain
        planned = view.row.latest.plan_version is not None
        so = "at this plan" if planned else "without a plan"
        parts[0] += f"; it pays after {age(pays_s)} {so}"
    if restart.measured:
        parts.append("The job’s last restart took this long for this group")
    else:
        parts.append("The restart’s length is assumed: no restart was recorded yet")
    if view.row.replace_node:
        parts.append(
            "It has straggled for over 1,000 steps; resize, migrate and sticky are for short ones"
        )
    return ". ".join(parts) + "."


def _gain(view: GroupView, document: MitigationDocument) -> float:
    """Return the share of today's step that goes where no rank is slow."""
    latest = view.row.latest
    now_s = max(latest.times_s)
    step_s = max(latest.measured_step_s or now_s, now_s)
    return max(now_s - document.fastest_time_s, 0.0) / step_s
