"""Checked documents about tensor-parallel groups: specifications, reports, acknowledgements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final, Literal, TypeVar

import numpy as np
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from app.analysis.mitigation.tensor.advice import Problem
from app.analysis.mitigation.tensor.group import Shares
from app.errors import Fault
from app.platform.validation import Flag, FromYaml, Name, Written, word
from app.tensor.measured import (
    MOST_COLUMNS,
    MOST_RANKS,
    Ratio,
    Time,
    WrittenGroup,
    refused,
    refused_by_pydantic,
)

DEFAULT_BUDGET: Final = 0.25

Count = Annotated[int, Field(ge=0, le=MOST_COLUMNS), FromYaml]
RankNumber = Annotated[int, Field(ge=0, lt=MOST_RANKS), FromYaml]


class WrittenShare(Written):
    """Share of a rank's work under a plan: an entry of `ranks` in an answer of the server."""

    rank: RankNumber
    resized_columns: Count = 0
    migrated_columns: Count | None = None
    to: Annotated[dict[RankNumber, Count], Field(max_length=MOST_RANKS, default_factory=dict)]
    # Fields that answers of the server also contain and that follow from the other fields.
    gamma: float | None = None
    received_columns: int | None = None
    time_s: float | None = None
    predicted_time_s: float | None = None


class WrittenPlan(Written):
    """The plan under which the times were measured: an alternative of an answer, or its ranks."""

    # Other fields of an alternative are ignored, since they follow from `ranks`.
    model_config = ConfigDict(extra="ignore")

    ranks: Annotated[list[WrittenShare], Field(max_length=MOST_RANKS)]


class WrittenMitigation(WrittenGroup):
    """Specification of a tensor-parallel group for which advice is requested."""

    accuracy_budget: Annotated[Ratio, Field(description="The largest γ")] = DEFAULT_BUDGET
    plan_in_force: WrittenPlan | None = None


def parse_problem(document: object) -> Problem:
    """Check a specification and return the group, without the effect of the plan in force.

    Raises
    ------
    InvalidTensorError
        With every fault, and the path of each in `Fault.column`.
    """
    try:
        written = WrittenMitigation.model_validate(document)
    except ValidationError as error:
        raise refused_by_pydantic(error, "the specification") from error
    faults = written.contradictions()
    in_force = None
    if written.plan_in_force is not None and not faults:
        in_force, faults = _shares(written, written.plan_in_force.ranks)
    if faults:
        raise refused(faults)
    return Problem(
        group=written.group(in_force),
        accuracy_budget=written.accuracy_budget,
        costs=None if written.costs is None else written.costs.costs(),
        sizes=written.each_size(),
        methods=written.known_methods,
    )


def _shares(
    written: WrittenMitigation, entries: Sequence[WrittenShare]
) -> tuple[Shares, list[Fault]]:
    """Return the columns that ranks leave out or migrate under the plan in force, and faults."""
    ranks, unit = len(written.times_s), written.unit
    shares, faults, seen = Shares.nothing(ranks), [], set[int]()
    for number, entry in enumerate(entries):
        path = f"plan_in_force.ranks[{number}]"
        if entry.rank >= ranks:
            message = f"{path}.rank: the group has no rank {entry.rank}"
            faults.append(Fault("unknown_rank", message, column=f"{path}.rank"))
            continue
        if entry.rank in seen:
            message = f"{path}.rank: rank {entry.rank} stands twice"
            faults.append(Fault("duplicate", message, column=f"{path}.rank"))
            continue
        seen.add(entry.rank)
        faults += _faults_of_share(written, entry, path)
        shares.resized[entry.rank] = entry.resized_columns // unit
        for to, count in entry.to.items():
            if to < ranks:
                shares.moved[entry.rank, to] = count // unit
    if not faults:
        faults = _faults_of_sums(written, entries, shares)
    return shares, faults


def _faults_of_share(written: WrittenMitigation, entry: WrittenShare, path: str) -> list[Fault]:
    ranks, faults = len(written.times_s), []
    for to in entry.to:
        place = f"{path}.to.{to}"
        if to >= ranks:
            message = f"{place}: the group has no rank {to}"
            faults.append(Fault("unknown_rank", message, column=place))
        elif to == entry.rank:
            message = f"{place}: a rank hands nothing to itself"
            faults.append(Fault("conflict", message, column=place))
    moved = sum(entry.to.values())
    if entry.migrated_columns not in (None, moved):
        place = f"{path}.migrated_columns"
        message = f"{place} is {entry.migrated_columns}, the entries of to add up to {moved}"
        faults.append(Fault("conflict", message, column=place))
    if entry.resized_columns + moved > written.columns - written.unit:
        message = f"{path} leaves rank {entry.rank} nothing of its {written.columns} columns"
        faults.append(Fault("conflict", message, column=path))
    if any(count % written.unit for count in (entry.resized_columns, *entry.to.values())):
        message = f"{path} takes units of {written.unit} columns apart"
        faults.append(Fault("conflict", message, column=path))
    return faults


def _faults_of_sums(
    written: WrittenMitigation, entries: Sequence[WrittenShare], shares: Shares
) -> list[Fault]:
    """Return contradictions between the fields of an answer that was edited by hand."""
    received, faults = shares.received * written.unit, []
    for number, entry in enumerate(entries):
        path = f"plan_in_force.ranks[{number}]"
        if entry.received_columns not in (None, int(received[entry.rank])):
            place = f"{path}.received_columns"
            message = f"{place} is not the {received[entry.rank]} that the others hand over"
            faults.append(Fault("conflict", message, column=place))
        gamma = entry.resized_columns / written.columns
        if entry.gamma is not None and not np.isclose(entry.gamma, gamma, rtol=0, atol=1e-6):
            place = f"{path}.gamma"
            message = f"{place} is not resized_columns / columns, {gamma:.6g}"
            faults.append(Fault("conflict", message, column=place))
    return faults


# Number of steps for which a plan is valid after the report that created or renewed it.
EXPIRES_AFTER_STEPS: Final = 200
MOST_STEP: Final = 2**53
MOST_ATTEMPT: Final = 2**31 - 1
GROUP_NAME: Final = r"[A-Za-z0-9._-]{1,64}"

Step = Annotated[int, Field(ge=0, le=MOST_STEP), FromYaml]
Attempt = Annotated[int, Field(ge=0, le=MOST_ATTEMPT), FromYaml]
Version = Annotated[int, Field(ge=1, le=MOST_ATTEMPT), FromYaml]
_Rank = Annotated[int, Field(ge=0, lt=2**31), FromYaml]
# Computed columns as a share of a rank's own columns: from one of `MOST_COLUMNS` columns up to the
# columns of all ranks.
_Computed = Annotated[float, Field(ge=1e-7, le=MOST_RANKS, allow_inf_nan=False), FromYaml]
M = TypeVar("M", bound=BaseModel)


class WrittenTimings(WrittenGroup):
    """Times of a group over the steps since the last report, under one plan or without a plan."""

    attempt: Attempt
    world_size: Annotated[int, Field(ge=2, le=MOST_RANKS), FromYaml]
    step: Annotated[Step, Field(description="The last step that the times are of")]
    max_gamma: Annotated[Ratio, Field(description="The accuracy budget of the job's own code")]
    apply: Annotated[Flag, Field(description="Whether the job's own code applies plans")]
    plan_version: Annotated[
        Version | None, Field(description="The plan in force on all ranks in all of the steps")
    ] = None
    computed: Annotated[
        list[_Computed] | None,
        Field(
            max_length=MOST_RANKS,
            description="What each rank computed, as a share of its columns; else the plan's",
        ),
    ] = None
    known_version: Annotated[
        int, Field(ge=0, le=MOST_ATTEMPT, description="The newest plan that the job has"), FromYaml
    ] = 0
    measured_step_s: Annotated[Time | None, Field(description="A step, waiting included, s")] = None
    ranks: Annotated[
        list[_Rank] | None, Field(max_length=MOST_RANKS, description="Global ranks, to be shown")
    ] = None
    hosts: Annotated[
        list[Name] | None, Field(max_length=MOST_RANKS, description="Of each rank, to be shown")
    ] = None

    def contradictions(self) -> list[Fault]:
        """Return a fault for each pair of fields that contradict each other."""
        faults = super().contradictions()
        for name, values in (
            ("times_s", self.times_s),
            ("ranks", self.ranks),
            ("hosts", self.hosts),
            ("computed", self.computed),
        ):
            if values is not None and len(values) != self.world_size:
                message = f"{name} has {len(values)} entries, world_size is {self.world_size}"
                faults.append(Fault("bad_length", message, column=name))
        return faults


class WrittenAck(Written):
    """An acknowledgement: how ranks handled a version of the plan at a step boundary."""

    attempt: Attempt
    step: Step
    ranks: Annotated[list[_Rank], Field(min_length=1, max_length=MOST_RANKS)]
    applied: Flag
    reason: Annotated[str | None, Field(max_length=200)] = None


class WrittenSwitch(Written):
    """The requested switch of a job's plans."""

    mode: Annotated[Literal["advise", "apply"], BeforeValidator(word)]
    max_gamma: Annotated[
        Ratio | None, Field(description="Lowers the job's accuracy budget; null leaves it")
    ] = None
    expires_after_steps: Annotated[int, Field(ge=1, le=1_000_000), FromYaml] = EXPIRES_AFTER_STEPS
    by: Annotated[Name | None, Field(description="Who switches")] = None


def parse_timings(document: object) -> WrittenTimings:
    """Check a report of times.

    Raises
    ------
    InvalidTensorError
        With every fault, and the path of each.
    """
    timings = _checked(WrittenTimings, document)
    faults = timings.contradictions()
    if faults:
        raise refused(faults)
    return timings


def parse_ack(document: object) -> WrittenAck:
    """Check an acknowledgement; raises as `parse_timings` does."""
    return _checked(WrittenAck, document)


def parse_switch(document: object) -> WrittenSwitch:
    """Check a switch; raises as `parse_timings` does."""
    return _checked(WrittenSwitch, document)


def _checked(model: type[M], document: object) -> M:
    try:
        return model.model_validate(document)
    except ValidationError as error:
        raise refused_by_pydantic(error, "the body") from error
