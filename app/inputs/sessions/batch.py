"""A batch of chunks in one body, as a host sends those of its ranks.

A line of JSON, ``{"chunks": [{"producer", "n", "final", "bytes"}, …]}``; behind it these bytes of
one chunk after the other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from app.analysis.trace.limits import MIB
from app.errors import BodyTooLargeError, Fault, PacelineError

if TYPE_CHECKING:
    from pathlib import Path

MAX_CHUNKS: Final = 256
# A batch is in memory while it is stored.
MAX_BATCH_BYTES: Final = 64 * MIB
MAX_LISTING_BYTES: Final = MIB


class InvalidBatchError(PacelineError):
    """A body that is no batch of chunks."""

    code = "batch.malformed"


class ListedChunk(BaseModel):
    """One chunk of a batch."""

    model_config = ConfigDict(extra="forbid")

    producer: str
    n: Annotated[int, Field(ge=0, lt=1 << 31)]
    final: bool = False
    bytes: Annotated[int, Field(ge=0)]


class Listing(BaseModel):
    """The chunks of a batch."""

    model_config = ConfigDict(extra="forbid")

    chunks: Annotated[list[ListedChunk], Field(min_length=1, max_length=MAX_CHUNKS)]


def read_batch(path: Path) -> list[tuple[ListedChunk, bytes]]:
    """Return the chunks of a batch, with the bytes of each.

    Raises
    ------
    BodyTooLargeError
        It has over `MAX_BATCH_BYTES`.
    InvalidBatchError
        The listing is none, or the body is longer or shorter than it says.
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
        announced = sum(one.bytes for one in listed)
        if len(line) + announced != size:
            raise InvalidBatchError(
                f"The list announces {announced} bytes of chunks, and {size - len(line)} came."
            )
        return [(one, file.read(one.bytes)) for one in listed]
