"""Fixes and what they would bring, replayed with the session's own durations changed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from app.analysis.whatif.graph import COMPUTE
from app.analysis.whatif.layout import FloatArray
from app.analysis.whatif.metrics import Metrics, Replayed

NS: Final = 1e-9
# A fix that brings less is not worth a restart.
MIN_GAIN: Final = 0.01


@dataclass(frozen=True, slots=True)
class Fix:
    """A change, and the mean step time with it.

    `step_time_s` is replayed; `gain` is the share of today's simulated step time that it saves.
    """

    action: str
    title: str
    step_time_s: float
    gain: float
    detail: str

    def as_document(self) -> dict[str, Any]:
        """Return JSON types."""
        return {
            "action": self.action,
            "title": self.title,
            "predicted_step_time": self.step_time_s,
            "predicted_gain": self.gain,
            "detail": self.detail,
        }


def predict_fixes(replayed: Replayed, metrics: Metrics) -> list[Fix]:
    """Replay the fixes that a trace alone can judge; best first, none under 1 % gain."""
    now_s = float(metrics.simulated_s.mean())
    fixes = []
    for action, title, detail, replaced in (
        _replace_workers(replayed, metrics),
        _even_stages(replayed),
    ):
        if not replaced:
            continue
        time_s = float(replayed.simulator.replaced_step_times(replaced).mean()) * NS
        gain = 1 - time_s / now_s
        if gain >= MIN_GAIN:
            fixes.append(Fix(action, title, time_s, gain, detail))
    return sorted(fixes, key=lambda fix: -fix.gain)


def _replace_workers(
    replayed: Replayed, metrics: Metrics
) -> tuple[str, str, str, dict[int, FloatArray]]:
    """Give the worst workers the medians of their stage peers, operation by operation.

    The ideal duration would not do: it is a mean that contains the straggler.
    """
    nodes, recorded = replayed.layout.nodes, replayed.durations.recorded_ns
    replaced: dict[int, FloatArray] = {}
    for stage in sorted({pp for _, pp in metrics.blamed}):
        bad = [dp for dp, pp in metrics.blamed if pp == stage]
        peers = np.setdiff1d(np.arange(replayed.layout.dp), bad)
        if len(peers) == 0:
            continue
        on_stage = np.flatnonzero(nodes.pp == stage)
        middle = np.median(recorded[on_stage][:, :, peers], axis=2)
        for node, values in zip(on_stage.tolist(), middle, strict=True):
            changed = recorded[node].copy()
            changed[:, bad] = values[:, None]
            replaced[node] = changed
    named = ", ".join(f"({dp}, {pp})" for dp, pp in metrics.blamed[:3])
    more = len(metrics.blamed) - 3
    label = f"worker {named}" if len(metrics.blamed) == 1 else f"workers {named}"
    if more > 0:
        label += f" and {more} more"
    return (
        "replace_worker",
        f"Replace {label}",
        "Replayed with the medians of the other DP ranks of the same stage.",
        replaced,
    )


def _even_stages(replayed: Replayed) -> tuple[str, str, str, dict[int, FloatArray]]:
    """Share the computing of each microbatch evenly among the stages; total work stays."""
    layout, nodes = replayed.layout, replayed.layout.nodes
    recorded = replayed.durations.recorded_ns
    replaced: dict[int, FloatArray] = {}
    for code in np.unique(nodes.op):
        if layout.pp == 1 or layout.op_names[code] not in COMPUTE:
            continue
        stages = [
            np.flatnonzero((nodes.op == code) & (nodes.pp == stage)) for stage in range(layout.pp)
        ]
        if len({len(stage) for stage in stages}) > 1:
            continue
        for same in zip(*(stage.tolist() for stage in stages), strict=True):
            mean = np.mean([recorded[node] for node in same], axis=0)
            replaced.update(dict.fromkeys(same, mean))
    return (
        "even_stages",
        "Divide the layers evenly by time",
        (
            "Replayed with the computing of each microbatch shared evenly among the stages: "
            "the most that a better division of layers can bring."
        ),
        replaced,
    )
