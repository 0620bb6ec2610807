"""What the replayed metrics blame, by the paper's own thresholds (section 5)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from app.analysis.whatif.metrics import Metrics

# From this slowdown on the paper counts a job as straggling (section 4).
STRAGGLING: Final = 1.1
# A set that explains half of the lost time is named as the cause (sections 5.1 and 5.2).
MAJORITY: Final = 0.5
# Forward and backward times that vary together: sequence lengths (section 5.3).
CORRELATED: Final = 0.9


@dataclass(frozen=True, slots=True)
class Cause:
    """A cause, its replayed share of the lost time where replay can tell it, and its evidence.

    `confidence` is None: these thresholds have not been scored against known truth.
    """

    cause: str
    contribution: float | None
    evidence: tuple[str, ...]
    where: dict[str, Any] = field(default_factory=dict)

    def as_document(self) -> dict[str, Any]:
        """Return JSON types."""
        return {
            "cause": self.cause,
            "contribution": self.contribution,
            "confidence": None,
            "evidence": list(self.evidence),
            "where": self.where,
        }


def attribute(metrics: Metrics, pearson: float | None, stages: int) -> list[Cause]:
    """Return the causes that pass the paper's thresholds, the leading one first.

    Below a slowdown of 1.1 there are none. Slow workers lead, because one makes forward and
    backward times vary together as well; then sequence lengths, whose long microbatches also make
    the last stage late; then the last stage.
    """
    if metrics.slowdown < STRAGGLING:
        return []
    causes = []
    m_w, m_s = metrics.m_w, metrics.m_s
    if m_w is not None and m_w >= MAJORITY:
        count, total = len(metrics.worst), metrics.by_worker[0].size
        blamed = [list(worker) for worker in metrics.blamed]
        causes.append(
            Cause(
                "slow_worker",
                m_w,
                (f"Idealizing {count} of {total} workers recovers {m_w:.0%} of the lost time",),
                {"workers": blamed},
            )
        )
    if pearson is not None and pearson >= CORRELATED and not causes:
        causes.append(
            Cause(
                "sequence_length_imbalance",
                None,
                (f"Forward and backward times of a microbatch correlate: r = {pearson:.2f}",),
            )
        )
    if m_s is not None and m_s >= MAJORITY:
        causes.append(
            Cause(
                "stage_imbalance",
                m_s,
                (f"Idealizing the last stage recovers {m_s:.0%} of the lost time",),
                {"stage": stages - 1},
            )
        )
    if not causes:
        name = max(metrics.by_optype, key=lambda t: float(metrics.by_optype[t].mean()))
        alone = float(metrics.relative(metrics.by_optype[name]))
        causes.append(
            Cause(
                "unknown",
                None,
                (
                    "Neither a few workers nor the last stage explain half of the lost time",
                    f"{name} alone makes the job {alone:.2f}× slower",
                ),
            )
        )
    return causes


def verdict(document: dict[str, Any], causes: Sequence[Cause]) -> dict[str, str]:
    """Say in one sentence how slow the job is and why.

    Returns
    -------
    dict
        ``sentence`` and ``level``: ``slow``, ``ok``, or ``none`` where there is no verdict.
    """
    fidelity = document["fidelity"]
    if not fidelity["verdict"]:
        sentence = (
            f"No verdict: the replay differs from the recording by {fidelity['discrepancy']:.1%}, "
            f"the limit is {fidelity['limit']:.0%}"
        )
        return {"sentence": sentence, "level": "none"}
    slowdown = document["slowdown"]
    if not causes:
        return {
            "sentence": f"{slowdown:.2f}× the ideal step time: no straggler to act on",
            "level": "ok",
        }
    lead = causes[0]
    because = {
        "slow_worker": _blame_workers,
        "stage_imbalance": _blame_stage,
        "sequence_length_imbalance": _blame_sequences,
        "unknown": _blame_nobody,
    }[lead.cause]
    sentence = f"{slowdown:.2f}× slower than ideal {because(document, lead)}"
    return {"sentence": sentence, "level": "slow"}


def _blame_workers(document: dict[str, Any], cause: Cause) -> str:
    workers = cause.where["workers"]
    dp, pp = workers[0]
    host = document["hosts"].get(str(document["workers"]["rank"][dp][pp]))
    who = f"worker ({dp}, {pp})" + (f" on {host}" if host else "")
    if len(workers) > 1:
        return f"because {len(workers)} workers are slow, {who} most of all"
    forward = document["by_worker"]["forward_ratio"][dp][pp]
    backward = document["by_worker"]["backward_ratio"][dp][pp]
    if forward is None or backward is None or min(forward, backward) < STRAGGLING:
        return f"because {who} is slow"
    return f"because {who} computes {(forward + backward) / 2:.1f}× slower than its peers"


def _blame_stage(document: dict[str, Any], cause: Cause) -> str:
    del document
    return f"because the last stage ({cause.where['stage']}) is heavier than the others"


def _blame_sequences(document: dict[str, Any], cause: Cause) -> str:
    del document, cause
    return "because microbatches differ in length, on all workers alike"


def _blame_nobody(document: dict[str, Any], cause: Cause) -> str:
    del cause
    name = max(document["by_optype"], key=document["by_optype"].__getitem__)
    return f"for no single worker or stage; {name} costs most"
