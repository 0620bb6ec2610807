"""Parse request documents of sessions: batches of chunks and what-if questions in JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    Strict,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from app.analysis.replay.adaptations.kind import Name
from app.analysis.replay.what_if import (
    MOST_SCALE,
    TYPE_NAMES,
    BaseDurations,
    Change,
    Question,
    Selection,
)
from app.analysis.trace.limits import MIB
from app.errors import BodyTooLargeError, Fault, InvalidQuestionError, PacelineError
from app.platform.validation import Written, faults_of

MAX_CHUNKS: Final = 256
# Limit of a batch, which is completely in memory while it is stored.
MAX_BATCH_BYTES: Final = 64 * MIB
MAX_LISTING_BYTES: Final = MIB


class InvalidBatchError(PacelineError):
    """The body is no batch of chunks."""

    code = "batch.malformed"


class ListedChunk(BaseModel):
    """The description of one chunk in the first line of a batch."""

    model_config = ConfigDict(extra="forbid")

    producer: str
    n: Annotated[int, Field(ge=0, lt=1 << 31)]
    final: bool = False
    bytes: Annotated[int, Field(ge=0)]


class Listing(BaseModel):
    """The first line of a batch: the list of its chunks."""

    model_config = ConfigDict(extra="forbid")

    chunks: Annotated[list[ListedChunk], Field(min_length=1, max_length=MAX_CHUNKS)]


def read_batch(path: Path) -> list[tuple[ListedChunk, bytes]]:
    """Return the listed chunks of a batch, with the bytes of each chunk.

    A batch is a line of JSON, ``{"chunks": [{"producer", "n", "final", "bytes"}, …]}``, followed by
    the bytes of the chunks in this order.

    Raises
    ------
    BodyTooLargeError
        The batch is longer than `MAX_BATCH_BYTES`.
    InvalidBatchError
        The first line is no valid list, or its sizes do not add up to the size of the body.
    """
    size = path.stat().st_size
    if size > MAX_BATCH_BYTES:
        raise BodyTooLargeError(f"A batch has at most {MAX_BATCH_BYTES} bytes.")
    with path.open("rb") as file:
        line = file.readline(MAX_LISTING_BYTES + 1)
        if len(line) > MAX_LISTING_BYTES:
            raise InvalidBatchError(f"The list of chunks has over {MAX_LISTING_BYTES} bytes.")
        try:
            listed = Listing.model_validate_json(line).chunks
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            message = f"The list of chunks is not valid: {first['msg']}"
            column = ".".join(map(str, first["loc"]))
            fault = Fault("malformed", message, line=1, column=column or None)
            raise InvalidBatchError(message, faults=(fault,)) from error
        announced = sum(chunk.bytes for chunk in listed)
        if len(line) + announced != size:
            raise InvalidBatchError(
                f"The list announces {announced} bytes of chunks, and {size - len(line)} came."
            )
        return [(chunk, file.read(chunk.bytes)) for chunk in listed]


# Limit of the changes in a question: each takes a pass over all operations while the request
# occupies a slot of the server, so an unlimited question could block others for minutes.
MOST_CHANGES: Final = 100

# Fault codes by pydantic's error type; all other error types get the code `type`.
CODES: Final = {
    "extra_forbidden": "unknown_key",
    "enum": "choice",
    "literal_error": "choice",
    "too_long": "too_many_changes",
    "float_type": "scale",
    "finite_number": "scale",
    "greater_than_equal": "scale",
    "less_than_equal": "scale",
}


def _list_of(what: str) -> WrapValidator:
    """Return a validator that reports one fault for a list instead of one fault per item."""

    def check(value: object, inner: ValidatorFunctionWrapHandler) -> object:
        try:
            return inner(value)
        except ValidationError:
            message = f"must be a list of {what}"
            raise PydanticCustomError("type", message) from None

    return WrapValidator(check)


Count = Annotated[int, Strict(), Field(ge=0)]


def _check_type(value: str) -> str:
    if value not in TYPE_NAMES:
        raise PydanticCustomError("type", "unknown type")
    return value


OpType = Annotated[
    str, AfterValidator(_check_type), Field(json_schema_extra={"enum": [*TYPE_NAMES]})
]


class WrittenSelection(Written):
    """Conditions that select operations; an operation has to meet all of them."""

    op_types: Annotated[tuple[OpType, ...], _list_of(", ".join(TYPE_NAMES))] = ()
    steps: Annotated[tuple[Count, ...], _list_of("steps")] = ()
    stages: Annotated[tuple[Count, ...], _list_of("stages")] = ()
    dp_ranks: Annotated[tuple[Count, ...], _list_of("DP ranks")] = ()
    workers: Annotated[tuple[tuple[Count, Count], ...], _list_of("[DP rank, stage]")] = ()


class WrittenChange(Written):
    """Duration of the selected operations: recorded, ideal or that of their peers, × `scale`."""

    select: WrittenSelection = WrittenSelection()
    duration: BaseDurations = BaseDurations.IDEAL
    scale: Annotated[float, Strict(), Field(ge=0, le=MOST_SCALE, allow_inf_nan=False)] = 1.0


class WrittenQuestion(Written):
    """Changes of durations; an operation takes the last change that selects it."""

    base: Annotated[
        Literal[BaseDurations.RECORDED, BaseDurations.IDEAL],
        Field(description="Durations of operations that no change selects"),
    ] = BaseDurations.RECORDED
    changes: Annotated[tuple[WrittenChange, ...], Field(max_length=MOST_CHANGES)] = ()
    without: Annotated[
        tuple[Name, ...], Field(description="Adaptations that the replay is made without")
    ] = ()

    @model_validator(mode="wrap")
    @classmethod
    def _refuse(cls, value: object, inner: ModelWrapValidatorHandler[Self]) -> Self:
        """Raise `InvalidQuestionError`: callers would take a ValidationError for one of theirs."""
        try:
            question = inner(value)
        except ValidationError as error:
            faults = tuple(faults_of(error, CODES, "type", root="the question"))
            raise InvalidQuestionError(faults[0].message, faults=faults) from error
        if not question.changes and not question.without:
            fault = Fault("no_changes", "changes has to be a list with a change", column="changes")
            raise InvalidQuestionError(fault.message, faults=(fault,))
        return question

    def question(self) -> Question:
        """Return the what-if question of a JSON document."""
        return Question(
            self.base,
            tuple(
                Change(Selection(**dict(change.select)), change.duration, change.scale)
                for change in self.changes
            ),
            tuple(dict.fromkeys(self.without)),
        )
