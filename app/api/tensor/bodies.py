"""Bodies of requests about tensor-parallel groups: bounded, YAML or JSON."""

from __future__ import annotations

from typing import Final

from fastapi import Request

from app.errors import BodyTooLargeError, InvalidTensorError
from app.inputs.tensor.measured import read_text

# A thousand ranks with a thousand samples of each cost are a tenth of this.
MOST_BODY_BYTES: Final = 1024 * 1024


async def read_body(request: Request) -> object:
    """Return what the body of a request says.

    Raises
    ------
    BodyTooLargeError
        It is over a megabyte.
    InvalidTensorError
        It is neither YAML nor JSON.
    """
    data = bytearray()
    async for chunk in request.stream():
        data += chunk
        if len(data) > MOST_BODY_BYTES:
            raise BodyTooLargeError(f"The body has at most {MOST_BODY_BYTES} bytes.")
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        message = f"the body is not UTF-8: {error.reason}"
        raise InvalidTensorError(message, code="tensor.malformed") from error
    return read_text(text, "the body")
