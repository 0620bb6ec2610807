"""A fix that a report promises, and what making it brings."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from app.analysis.diagnosis.places import Where, Worker
from app.analysis.report.document import Report
from app.analysis.report.findings import Recommendation

# As near as a prediction has to be.
NEAR: Final = 0.05
_WORKER: Final = re.compile(r"\((\d+), (\d+)\)")


@dataclass(frozen=True, slots=True)
class Promise:
    """One fix of one job.

    Parameters
    ----------
    seed : int
    physics : str
    fault : str
        What is wrong with the job.
    action : str
    at_most : bool
        Whether the report calls it a bound.
    promised, realised : float
        Step time now ÷ with the fix: predicted, and executed.
    """

    seed: int
    physics: str
    fault: str
    action: str
    at_most: bool
    promised: float
    realised: float

    @property
    def error(self) -> float:
        """Return how far the promise is off."""
        return abs(self.promised / self.realised - 1)


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
class Advised:
    """A fix as whoever makes it reads it, and where.

    Parameters
    ----------
    fix : Recommendation
    where : Where
        Of the cause that it removes.
    report : Report
    """

    fix: Recommendation
    where: Where
    report: Report

    @property
    def workers(self) -> tuple[Worker, ...]:
        """Return the workers that it is about: of its cause, or as its title names them."""
        if self.where.workers:
            return self.where.workers
        return tuple((int(dp), int(pp)) for dp, pp in _WORKER.findall(self.fix.title))


def advised(report: Report) -> list[Advised]:
    """Return the fixes of a report, each with the places of its cause."""
    where = {cause.cause: cause.where for cause in reversed(report.causes)}
    nowhere = Where()
    return [
        Advised(fix, where.get(fix.cause or "", nowhere), report) for fix in report.recommendations
    ]
