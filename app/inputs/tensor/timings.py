"""What a job reports of a tensor-parallel group, acknowledges, and how it is switched."""

from __future__ import annotations

from typing import Annotated, Final, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, Field, ValidationError

from app.errors import Fault
from app.inputs.tensor.measured import (
    MOST_RANKS,
    Ratio,
    Time,
    WrittenGroup,
    refused,
    refused_by_pydantic,
)
from app.inputs.values import Flag, FromYaml, Name, Written, word

MOST_STEP: Final = 2**53
MOST_ATTEMPT: Final = 2**31 - 1
GROUP_NAME: Final = r"[A-Za-z0-9._-]{1,64}"

Step = Annotated[int, Field(ge=0, le=MOST_STEP), FromYaml]
Attempt = Annotated[int, Field(ge=0, le=MOST_ATTEMPT), FromYaml]
Version = Annotated[int, Field(ge=1, le=MOST_ATTEMPT), FromYaml]
_Rank = Annotated[int, Field(ge=0, lt=2**31), FromYaml]
# The least is a column of the most, and a rank may compute all others' as well.
_Computed = Annotated[float, Field(ge=1e-7, le=MOST_RANKS, allow_inf_nan=False), FromYaml]
M = TypeVar("M", bound=BaseModel)


class WrittenTimings(WrittenGroup):
    """Times of a group over the steps since the last report, all of them under one plan or none."""

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
        """Return what fields say against each other."""
        found = super().contradictions()
        for name, values in (
            ("times_s", self.times_s),
            ("ranks", self.ranks),
            ("hosts", self.hosts),
            ("computed", self.computed),
        ):
            if values is not None and len(values) != self.world_size:
                message = f"{name} has {len(values)} entries, world_size is {self.world_size}"
                found.append(Fault("bad_length", message, column=name))
        return found


class WrittenAck(Written):
    """What ranks did with a version at a step boundary."""

    attempt: Attempt
    step: Step
    ranks: Annotated[list[_Rank], Field(min_length=1, max_length=MOST_RANKS)]
    applied: Flag
    reason: Annotated[str | None, Field(max_length=200)] = None


class WrittenSwitch(Written):
    """How the plans of a job are handled."""

    mode: Annotated[Literal["advise", "apply"], BeforeValidator(word)]
    max_gamma: Annotated[
        Ratio | None, Field(description="Lowers the job's accuracy budget; null leaves it")
    ] = None
    expires_after_steps: Annotated[int, Field(ge=1, le=1_000_000), FromYaml] = 200
    by: Annotated[Name | None, Field(description="Who switches")] = None


def parse_timings(document: object) -> WrittenTimings:
    """Check a report of times.

    Raises
    ------
    InvalidTensorError
        With every fault and its path.
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
