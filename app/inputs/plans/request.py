"""A request for a plan: a specification, and how to plan for it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, Final, cast

from pydantic import BeforeValidator, Field, ValidationError, ValidationInfo, field_validator

from app.analysis.planning.job.costs import least_bytes, room_bytes
from app.analysis.planning.job.model import JobSpec
from app.analysis.planning.spec.catalogue import GIB
from app.analysis.planning.spec.model import METHODS, OBJECTIVES, Method, Objective, Spec
from app.errors import Fault, InvalidSpecError
from app.inputs.faults import faults_of
from app.inputs.plans.job import WrittenJob
from app.inputs.plans.reading import Reading, reading_of
from app.inputs.plans.spec import CODES, AnySpec, WrittenSpec, load_spec
from app.inputs.values import FromYaml, Name, Written, word

DEFAULT_TIME_LIMIT_S: Final = 60.0
# With the comparison, which gets as much again, and the last pass this stays below the limit of
# an analysis.
MOST_TIME_LIMIT_S: Final = 240.0
# Forward passes of one simulated iteration on one device each. More would not fit in memory.
MOST_COMPUTATIONS: Final = 2_000_000


def _loaded(value: object) -> object:
    return load_spec(value) if isinstance(value, str) else value


class WrittenRequest(Written):
    """A request for a plan; `spec` may be a text of YAML or JSON as well."""

    method: Annotated[Method, BeforeValidator(word)] = "optimal"
    objective: Annotated[Objective, BeforeValidator(word)] = OBJECTIVES[0]
    time_limit_s: Annotated[
        float, Field(gt=0, le=MOST_TIME_LIMIT_S, allow_inf_nan=False), FromYaml
    ] = DEFAULT_TIME_LIMIT_S
    name: Annotated[Name | None, BeforeValidator(lambda value: value or None)] = None
    spec: Annotated[
        AnySpec,
        BeforeValidator(_loaded, json_schema_input_type=WrittenSpec | WrittenJob | str),
    ]

    @field_validator("spec")
    @classmethod
    def _limit(
        cls, spec: WrittenSpec | WrittenJob, info: ValidationInfo
    ) -> WrittenSpec | WrittenJob:
        reading = reading_of(info)
        if isinstance(spec, WrittenJob):
            for key, only in (("method", METHODS[0]), ("objective", OBJECTIVES[0])):
                if info.data.get(key, only) != only:
                    reading.refuse("conflict", f"a whole job is planned by {only}", key)
            if not reading.faults:
                reading.faults += _memory(spec.spec())
        elif not reading.faults:
            reading.faults += _limits(spec.spec(), info.data.get("objective"))
        return spec


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """A plan that can be asked for."""

    document: dict[str, Any]  # the specification as JSON types
    spec: Spec | JobSpec  # the same, read
    method: Method
    objective: Objective
    time_limit_s: float
    name: str | None

    @property
    def layers(self) -> int:
        """Return the layers of the model, embedding and head counted."""
        if isinstance(self.spec, JobSpec):
            return self.spec.transformer.layers_count + 2
        return len(self.spec.layers)


def read_request(document: object) -> PlanRequest:
    """Check a request.

    Parameters
    ----------
    document : object
        ``{"spec": …, "method": …, "objective": …, "time_limit_s": …, "name": …}``; the
        specification is a mapping, or a text of YAML or JSON.

    Raises
    ------
    InvalidSpecError
        With every fault and its path; paths within the specification begin there.
    """
    reading, faults = Reading(), []
    try:
        written = WrittenRequest.model_validate(document, context=reading)
    except ValidationError as error:
        faults = faults_of(error, CODES, "bad_type", root="the request", inner="spec")
    faults += reading.faults
    if faults:
        count = len(faults)
        raise InvalidSpecError(
            f"The request has {count} fault{'s' if count > 1 else ''}: {faults[0].message}"
            + (", …" if count > 1 else "."),
            faults=tuple(faults),
        )
    return PlanRequest(
        document=cast("dict[str, Any]", reading.document),
        spec=written.spec.spec(),
        method=written.method,
        objective=written.objective,
        time_limit_s=written.time_limit_s,
        name=written.name,
    )


def _memory(spec: JobSpec) -> list[Fault]:
    """Return the fault of a job that no search has to find too large: its states alone are."""
    needed, room = least_bytes(spec), room_bytes(spec)
    if needed <= room:
        return []
    nodes = math.ceil(spec.nodes * needed / room)
    where = "devices[0].nodes" if len(spec.devices) == 1 else "devices"
    message = (
        f"weights, gradients and optimizer states take {needed / GIB:,.1f} GiB, and all GPUs have "
        f"{room / GIB:,.1f} GiB but for the margin: {needed / room:.3g} times the memory of a GPU "
        f"or {nodes} such nodes are the least that would do"
    )
    return [Fault("does_not_fit", message, column=where)]


def _limits(spec: Spec, objective: object) -> list[Fault]:
    """Return the faults of a specification that is sound in itself."""
    faults = []
    most_stages = min(spec.gpus, len(spec.layers))
    if objective == "t_oobleck" and spec.microbatches < most_stages:
        message = f"t_oobleck needs as many microbatches as there can be stages, {most_stages}"
        faults.append(Fault("out_of_range", message, column="microbatches"))
    most = MOST_COMPUTATIONS // most_stages
    if spec.microbatches > most:
        message = f"with {most_stages} stages at most {most} microbatches can be simulated"
        faults.append(Fault("too_large", message, column="microbatches"))
    return faults
