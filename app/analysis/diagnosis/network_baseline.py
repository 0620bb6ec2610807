"""The network of all ranks is slower than in the job's earlier sessions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from app.analysis.diagnosis.earlier_sessions import Past
from app.analysis.diagnosis.finding import Change, Doubt, Evidence, Finding, Uncertainty
from app.analysis.diagnosis.locations import StageView, Where
from app.analysis.diagnosis.observation import Observation
from app.analysis.quantities import FloatArray

OF_ALL: Final = "Find what slows the network of all ranks"
HOW_OF_ALL: Final = (
    "Replayed with transfers as long as in the job's past. No link is slower than the others: look "
    "at what all of them share, such as a switch, other traffic, or a transport that fell back to "
    "a slower one."
)


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Uncertainty of comparing the network with the network of earlier sessions."""

    one_session: float = 0.8  # highest confidence with a single earlier session
    # Half of the relative 95 % interval of the step time if transfers took as long as in earlier
    # sessions.
    unsure: float = 0.03


THRESHOLDS: Final = Thresholds()


def slower_than_before(observation: Observation, past: Past) -> Finding | None:
    """Return the transfers that are slower than in earlier sessions; None if none are.

    Without the cause, transfers take as long as in the earlier sessions. If a single stage of
    several is slower, the finding names this stage.
    """
    if not past.slow_transfers:
        return None
    transfers_ns: dict[int, FloatArray] = {
        node: observation.recorded_ns[node] / slow.times
        for (name, stage), slow in past.slow_transfers.items()
        for node in observation.layout.of(name, stage).tolist()
    }
    stages = sorted({stage for _, stage in past.slow_transfers})
    alone = len(stages) == 1 < observation.layout.pp
    (name, stage), most = max(past.slow_transfers.items(), key=lambda item: item[1].times)
    on = f" on stage {stage}" if observation.layout.pp > 1 else ""
    of = "" if most.sessions == 1 else f" and {most.sessions - 1} more like it"
    line = Evidence(
        f"{name}{on} takes {most.times:.1f}× as long as in session {most.number}{of}, of the same "
        "configuration and on the same machines; no rank is slower than its peers",
        StageView(pp=stage),
    )
    return Finding(
        change=Change(transfers_ns=transfers_ns),
        evidence=(line,),
        where=Where(stage=stages[0]) if alone else Where(),
        uncertainty=Uncertainty(THRESHOLDS.unsure),
        doubt=Doubt(THRESHOLDS.one_session) if most.sessions == 1 else None,
    )
