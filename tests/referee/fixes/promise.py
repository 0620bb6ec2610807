"""A fix with its promised and its realized gain."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from app.analysis.diagnosis.locations import Where, Worker
from app.analysis.mitigation.fixes import ByChunk, PlannedTemplate
from app.analysis.mitigation.pipeline_template import MIN_GAIN
from app.analysis.report.document import Recommendation, Report

# Largest accepted error of a prediction.
NEAR: Final = 0.05
# Name of pipeline templates among the fixes.
TEMPLATE: Final = "pipeline_template"
# Fixes that, as an upper bound without a plan, assume an ideal that no change may reach.
ASSUME_IDEAL: Final = frozenset({"even_stages", "even_microbatches"})
_WORKER: Final = re.compile(r"\((\d+), (\d+)\)")


@dataclass(frozen=True, slots=True)
class Promise:
    """One fix of one job.

    Parameters
    ----------
    seed : int
    physics : str
    fault : str
        The job's fault.
    action : str
    at_most : bool
        Whether the report calls the gain an upper bound.
    itself : bool
        Whether the executed change is the one that the report describes; for a bound without a
        description, the assumed ideal is executed.
    promised, realised : float
        Step time now ÷ with the fix: predicted, and executed.
    """

    seed: int
    physics: str
    fault: str
    action: str
    at_most: bool
    itself: bool
    promised: float
    realised: float

    @property
    def error(self) -> float:
        """Return the promise's relative error; for an upper bound, by how much it is exceeded."""
        off = self.promised / self.realised - 1
        return max(-off, 0.0) if self.open else abs(off)

    @property
    def open(self) -> bool:
        """Return whether the report gives only an upper bound for a change that it describes."""
        return self.at_most and self.itself


@dataclass(frozen=True, slots=True)
class Refereed:
    """All fixes of one job.

    Parameters
    ----------
    seed : int
    physics, fault : str
    healthy : bool
    promises : tuple of Promise
    unexecuted : tuple of str
        Actions that the physics cannot make.
    """

    seed: int
    physics: str
    fault: str
    healthy: bool
    promises: tuple[Promise, ...]
    unexecuted: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class OfJob:
    """The fields that all promises of a job share, as in `Promise`."""

    seed: int
    physics: str
    fault: str

    def promise(
        self, action: str, gain: float, realised: float, *, at_most: bool, itself: bool = True
    ) -> Promise:
        """Return the promise of a gain, a share of today's step."""
        return Promise(
            seed=self.seed,
            physics=self.physics,
            fault=self.fault,
            action=action,
            at_most=at_most,
            itself=itself,
            promised=1 / (1 - gain),
            realised=realised,
        )

    def refereed(
        self, promises: Sequence[Promise], unexecuted: Sequence[str], *, healthy: bool
    ) -> Refereed:
        """Return all of the job's promises."""
        return Refereed(
            self.seed, self.physics, self.fault, healthy, tuple(promises), tuple(unexecuted)
        )


@dataclass(frozen=True, slots=True)
class Advised:
    """A recommended fix with its place.

    Parameters
    ----------
    fix : Recommendation
    where : Where
        Place of the cause that it removes.
    report : Report
    """

    fix: Recommendation
    where: Where
    report: Report

    @property
    def described(self) -> bool:
        """Return whether the report describes the change, not only an ideal."""
        fix = self.fix
        planned = fix.division is not None or fix.balancing is not None
        return not fix.at_most or planned or fix.action not in ASSUME_IDEAL

    @property
    def of_turns(self) -> bool:
        """Return whether the gain is a share of the time between the begins of two steps."""
        return any(c.cause == self.fix.cause and c.between_s for c in self.report.causes)

    @property
    def workers(self) -> tuple[Worker, ...]:
        """Return the workers of the fix: those of its cause, or those in its title."""
        if self.where.workers:
            return self.where.workers
        return tuple((int(dp), int(pp)) for dp, pp in _WORKER.findall(self.fix.title))


def advised(report: Report) -> list[Advised]:
    """Return the fixes of a report, each with the place of its cause."""
    where = {cause.cause: cause.where for cause in reversed(report.causes)}
    nowhere = Where()
    return [
        Advised(fix, where.get(fix.cause or "", nowhere), report) for fix in report.recommendations
    ]


def shown_template(report: Report) -> PlannedTemplate | None:
    """Return the pipeline template that a report recommends, if any."""
    found = report.template
    if not isinstance(found, PlannedTemplate) or found.predicted_gain < MIN_GAIN:
        return None
    return found


def divisions_of_template(template: PlannedTemplate, report: Report) -> tuple[ByChunk, ByChunk]:
    """Return the layers of each chunk now and with a template.

    For virtual stages they are in the fix of the template.
    """
    for fix in report.recommendations:
        if fix.division is not None and fix.predicted_gain == template.predicted_gain:
            return fix.division.today, fix.division.layers
    layers = template.layers
    return tuple((n,) for n in layers.today), tuple((n,) for n in layers.template)
