"""Parser of planning specifications and requests from YAML or JSON documents.

Codes of the faults of `InvalidSpecError`
-----------------------------------------
=================  ============================================================================
``missing``        a required key is absent
``unknown_key``    a key that the specification does not have
``bad_type``       a value of a wrong type
``out_of_range``   a number outside its range
``bad_length``     a list that is empty, too long, or not as long as the model
``unknown_value``  a word that is not one of the allowed words
``unknown_type``   a device type that the specification, or the catalogue, does not have
``duplicate``      a device type that occurs twice
``conflict``       two statements contradict each other
``not_readable``   a profile that cannot be read
``too_large``      more devices than a search supports
``does_not_fit``   a whole job that all memory of its devices is too small for (over HTTP)
=================  ============================================================================
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from math import prod
from typing import Annotated, Any, Final, Literal, TypeVar, cast

from pydantic import (
    BeforeValidator,
    Discriminator,
    Field,
    Tag,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from app.analysis.documents import UnreadableDocumentError, load_document
from app.analysis.planning.job.costs import least_bytes, room_bytes
from app.analysis.planning.job.spec import JobSpec
from app.analysis.planning.spec import METHODS, OBJECTIVES, Method, Objective, Spec
from app.analysis.planning.transformer import GIB
from app.errors import Fault, InvalidSpecError
from app.plans.specs.cluster import (
    ProfiledOn,
    ProfileReader,
    Reading,
    WrittenDevice,
    WrittenModel,
    WrittenNetwork,
    reading_of,
)
from app.plans.specs.job import WrittenJob, asks_for_job
from app.platform.validation import Flag, FromYaml, Name, Written, as_json, faults_of, word

Read = TypeVar("Read")

MOST_TYPES: Final = 16
MOST_MICROBATCHES: Final = 100_000
# Maximum number of states of the search: combinations of whole nodes × slots of an open node.
MOST_STATES: Final = 40_000_000

DEFAULT_TIME_LIMIT_S: Final = 60.0
# Maximum time limit of a search, seconds. The search, a comparison of the same length and the last
# pass together stay below the time limit of a worker's task.
MOST_TIME_LIMIT_S: Final = 240.0
# Maximum number of forward passes of a simulated iteration; it bounds the memory.
MOST_COMPUTATIONS: Final = 2_000_000

_OWN_CODES: Final = (
    "missing", "out_of_range", "bad_length", "unknown_type", "duplicate", "conflict",
    "not_readable", "too_large",
)  # fmt: skip
# Fault codes by type of pydantic error; every other type has the code `bad_type`.
CODES: Final = {code: code for code in _OWN_CODES} | {
    "extra_forbidden": "unknown_key",
    "literal_error": "unknown_value",
    "too_short": "bad_length",
    "too_long": "bad_length",
    "too_many_keys": "bad_length",
    "greater_than": "out_of_range",
    "greater_than_equal": "out_of_range",
    "less_than_equal": "out_of_range",
}


class WrittenSpec(Written):
    """Specification of a pipeline to plan."""

    model: WrittenModel
    devices: Annotated[list[WrittenDevice], Field(min_length=1, max_length=MOST_TYPES)]
    profiled_on: ProfiledOn | None = None
    microbatches: Annotated[int, Field(ge=1, le=MOST_MICROBATCHES), FromYaml]
    network: WrittenNetwork = WrittenNetwork()
    allow_idle: Annotated[Flag, Field(description="Devices may be left out")] = False
    replicate: Annotated[Flag, Field(description="Stages may span whole nodes")] = False
    fold_with_communication: Annotated[Flag, Field(description="Ditto's second formula")] = False
    greedy_rule: Annotated[Literal["paper", "code"], BeforeValidator(word)] = "paper"
    pipelines: Annotated[
        Literal[1], FromYaml, Field(description="More need global_batch, which asks for the job")
    ] = 1

    @model_validator(mode="before")
    @classmethod
    def _plain(cls, value: object, info: ValidationInfo) -> object:
        reading = reading_of(info)
        reading.document = as_json(value)
        return reading.document

    @field_validator("devices")
    @classmethod
    def _plannable(cls, devices: list[WrittenDevice]) -> list[WrittenDevice]:
        slots = 1 + sum(device.gpus_per_node - 1 for device in devices)
        if prod(device.nodes + 1 for device in devices) * slots > MOST_STATES:
            message = "there are too many combinations of nodes to plan for"
            raise PydanticCustomError("too_large", message)
        return devices

    def spec(self) -> Spec:
        """Return the planning problem."""
        written, layers = self.model.transformer, self.model.all_layers()
        transformer = None if written is None else written.transformer()
        profiled = self.profiled_on
        return Spec(
            layers=layers,
            profiled_speed=1.0 if profiled is None or profiled.speed is None else profiled.speed,
            devices=tuple(device.device(transformer) for device in self.devices),
            microbatches=self.microbatches,
            network=self.network.network(len(layers)),
            allow_idle=self.allow_idle,
            replicate=self.replicate,
            fold_with_communication=self.fold_with_communication,
            greedy_rule=self.greedy_rule,
        )


# Specification of a pipeline or of a whole job. Tags in brackets are omitted from the paths of
# faults.
AnySpec = Annotated[
    Annotated[WrittenSpec, Tag("[pipeline]")] | Annotated[WrittenJob, Tag("[job]")],
    Discriminator(lambda value: "[job]" if asks_for_job(value) else "[pipeline]"),
]
_ANY: Final[TypeAdapter[WrittenSpec | WrittenJob]] = TypeAdapter(AnySpec)


def load_spec(text: str) -> object:
    """Return the document in a YAML or JSON text, as input of `parse_spec`.

    Raises
    ------
    InvalidSpecError
        ``spec.malformed`` or ``spec.too_large``, with the line of the fault.
    """
    try:
        return load_document(text)
    except UnreadableDocumentError as error:
        raise unreadable_spec(error) from error


def unreadable_spec(
    error: UnreadableDocumentError, name: str = "the specification"
) -> InvalidSpecError:
    """Return the error for a specification whose text cannot be read."""
    message = f"{name} is {error.message}"
    fault = Fault(error.code, message, line=error.line)
    return InvalidSpecError(message, code=f"spec.{error.code}", faults=(fault,))


def parse_spec(document: object, read_profile: ProfileReader | None = None) -> Spec:
    """Return the validated specification of a pipeline: `parse_any_spec` without whole jobs."""
    return _parsed(TypeAdapter(WrittenSpec), document, read_profile).spec()


def parse_any_spec(document: object, read_profile: ProfileReader | None = None) -> Spec | JobSpec:
    """Return a validated specification; with `global_batch` it specifies a whole job.

    Parameters
    ----------
    read_profile : callable, optional
        Returns the document of the profile named in ``model.profile``. Without this function, a
        profile must be part of the specification.

    Raises
    ------
    InvalidSpecError
        The error holds every fault, with its path in `Fault.column`.
    """
    return _parsed(_ANY, document, read_profile).spec()


def _parsed(kind: TypeAdapter[Read], document: object, read_profile: ProfileReader | None) -> Read:
    reading, faults = Reading(read_profile), []
    try:
        written = kind.validate_python(document, context=reading)
    except ValidationError as error:
        faults = faults_of(error, CODES, "bad_type", root="the specification")
    faults += reading.faults
    if faults:
        raise InvalidSpecError(
            f"the specification has {len(faults)} fault{'s' if len(faults) > 1 else ''}",
            faults=tuple(faults),
        )
    return written


class WrittenRequest(Written):
    """Request for a plan; `spec` may also be a text of YAML or JSON."""

    method: Annotated[Method, BeforeValidator(word)] = "optimal"
    objective: Annotated[Objective, BeforeValidator(word)] = OBJECTIVES[0]
    time_limit_s: Annotated[
        float, Field(gt=0, le=MOST_TIME_LIMIT_S, allow_inf_nan=False), FromYaml
    ] = DEFAULT_TIME_LIMIT_S
    name: Annotated[Name | None, BeforeValidator(lambda value: value or None)] = None
    spec: Annotated[
        AnySpec,
        BeforeValidator(
            lambda value: load_spec(value) if isinstance(value, str) else value,
            json_schema_input_type=WrittenSpec | WrittenJob | str,
        ),
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
    """Request for a plan, validated."""

    document: dict[str, Any]  # the specification as JSON types
    spec: Spec | JobSpec
    method: Method
    objective: Objective
    time_limit_s: float
    name: str | None

    @property
    def layers(self) -> int:
        """Return the number of layers of the model: of a whole job's model, those of its blocks."""
        if isinstance(self.spec, JobSpec):
            return self.spec.transformer.layers_count
        return len(self.spec.layers)


def read_request(document: object) -> PlanRequest:
    """Return a validated request.

    Parameters
    ----------
    document : object
        ``{"spec": …, "method": …, "objective": …, "time_limit_s": …, "name": …}``; the
        specification is a mapping, or a text of YAML or JSON.

    Raises
    ------
    InvalidSpecError
        The error holds every fault with its path; paths of faults in the specification are relative
        to the specification.
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
    """Return a fault if weights, gradients and optimizer state exceed the memory of all devices."""
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
    """Return the faults of a valid specification: objective impossible, or simulation too large."""
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
