"""Judgement of answers, with a table and a last line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Final

from tests.real_jobs.analyzing import Answer, NamedCause
from tests.real_jobs.scenarios import Scenario
from tests.real_jobs.truth import Truth

MOST_DISCREPANCY: Final = 0.02
HEADLINE_WITHIN: Final = 0.05
# Maximum confidence in a cause on a stage whose workers have no peers.
SURE: Final = 0.9

_EITHER: Final = ("slow_worker", "stage_imbalance")


@dataclass(frozen=True, slots=True)
class Judged:
    """A scenario with its truth, the product's answer, and the faults of that answer.

    Parameters
    ----------
    truth : Truth or None
        None if the job did not run.
    noise : float or None
        Spread of the steps of the healthy runs in the same launch, the larger.
    recording : bytes
        The trace that was analyzed, NDJSON.
    """

    scenario: Scenario
    truth: Truth | None
    answer: Answer
    wrong: tuple[str, ...]
    noise: float | None = None
    retried: bool = False
    recording: bytes = field(default=b"", repr=False)

    @property
    def right(self) -> bool:
        """Return whether the answer has no fault."""
        return not self.wrong


def not_run(scenario: Scenario, why: str) -> Judged:
    """Return the result of a scenario whose job failed, which is a fault of the test."""
    return Judged(scenario, None, Answer(refused=why), (f"not run: {why}",))


def faults_of(answer: Answer, truth: Truth) -> tuple[str, ...]:
    """Return the faults of an answer in a few words each; empty if it is right."""
    if answer.refused is not None:
        return (f"refused: {answer.refused}",)
    wrong: list[str] = []
    if not answer.verdict:
        wrong.append("no verdict")
    if answer.discrepancy >= MOST_DISCREPANCY:
        wrong.append(f"discrepancy {answer.discrepancy:.1%}")
    if abs(off(answer, truth)) > HEADLINE_WITHIN:
        wrong.append(f"headline {answer.headline:.3f} for {truth.slowdown:.3f}")
    wrong += _wrong_cause(answer, truth)
    return tuple(wrong)


def off(answer: Answer, truth: Truth) -> float:
    """Return the relative error of the headline."""
    return answer.headline / truth.slowdown - 1


def _wrong_cause(answer: Answer, truth: Truth) -> list[str]:
    first = answer.causes[0] if answer.causes else None
    if first is None or truth.cause is None:
        named = None if first is None else first.name
        return [] if named == truth.cause else [f"{named} for {truth.cause}"]
    if truth.one_dp_rank and truth.at_an_end and truth.stage is not None:
        return _wrong_of_two(answer.causes, truth)
    if first.name != truth.cause:
        return [f"{first.name} for {truth.cause}"]
    if truth.worker is not None and first.workers != (truth.worker,):
        return [f"workers {_places(first)} for {_place(truth)}"]
    if truth.worker is None and truth.stage is not None and first.stage != truth.stage:
        return [f"stage {first.stage} for {truth.stage}"]
    return []


def _wrong_of_two(causes: Sequence[NamedCause], truth: Truth) -> list[str]:
    """Return the faults of an answer about a worker without peers, which may be a heavy stage.

    Both causes must be named, one of them possibly as the runner-up, and neither with certainty.
    """
    there = [cause for cause in causes if _is_at(cause, truth.stage)]
    blamed = {cause.runner_up: cause for cause in there} | {cause.name: cause for cause in there}
    wrong: list[str] = []
    for name in _EITHER:
        if name not in blamed:
            wrong.append(f"{name} at stage {truth.stage} not named")
        elif blamed[name].confidence >= SURE:
            wrong.append(f"{name} with confidence {blamed[name].confidence:.2f}")
    if causes[0].name not in _EITHER:
        wrong.append(f"{causes[0].name} for {truth.cause}")
    return wrong


def _is_at(cause: NamedCause, stage: int | None) -> bool:
    return cause.stage == stage or any(worker.pp == stage for worker in cause.workers)


def summary(results: Sequence[Judged]) -> list[str]:
    """Return the output of a run: the table, the retries and, last, the count."""
    retried = sum(result.retried for result in results)
    return [
        *table(results),
        f"{retried} retried, where the healthy run was noisy",
        last_line(results),
    ]


def table(results: Sequence[Judged]) -> list[str]:
    """Return a line for each scenario below a line of headings."""
    rows = [
        (
            *("scenario", "dp×pp", "fault", "noise", "true", "verdict", "discr.", "headline"),
            *("first cause", "worker", "right"),
        ),
        *(_row(result) for result in results),
    ]
    return columns(rows)


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return a line for each row, with aligned cells."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def last_line(results: Sequence[Judged]) -> str:
    """Return the number of right answers, and the errors of their headlines.

    A refused trace has no headline; a trace without a verdict has one that is not shown.
    """
    right = sum(result.right for result in results)
    counted = f"real jobs: {right} of {len(results)} right"
    errors = [
        abs(off(result.answer, result.truth))
        for result in results
        if result.truth is not None and result.answer.refused is None
    ]
    if not errors:
        return f"{counted}, no headline"
    return f"{counted}, headline off by median {median(errors):.1%}, worst {max(errors):.1%}"


def _row(result: Judged) -> tuple[str, ...]:
    scenario, said = result.scenario, result.answer
    first = said.causes[0] if said.causes else None
    refused = said.refused is not None
    return (
        scenario.name,
        f"{scenario.job.dp}×{scenario.job.pp}",
        scenario.fault.says or "none",
        "-" if result.noise is None else f"{result.noise:.1%}",
        "-" if result.truth is None else f"{result.truth.slowdown:.3f}",
        "yes" if said.verdict else "no",
        "-" if refused else f"{said.discrepancy:.1%}",
        "-" if refused else f"{said.headline:.3f}",
        "-" if first is None else first.name,
        "-" if first is None else _places(first),
        ("yes" if result.right else _one_line(result.wrong)) + " (retried)" * result.retried,
    )


def _one_line(wrong: Sequence[str]) -> str:
    return "; ".join(words.partition("\n")[0] for words in wrong)


def _places(cause: NamedCause) -> str:
    return " ".join(f"{worker.dp}/{worker.pp}" for worker in cause.workers) or "-"


def _place(truth: Truth) -> str:
    return "-" if truth.worker is None else f"{truth.worker.dp}/{truth.worker.pp}"
