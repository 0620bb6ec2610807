"""What a request asks for in its path and query, read by one model each.

For routes that are called thousands of times in a row: the framework takes parameter by parameter,
which costs as much as all else that it does for a request.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeVar

from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ValidationError

if TYPE_CHECKING:
    from collections.abc import Mapping

M = TypeVar("M", bound=BaseModel)


def asked(model: type[M], where: Literal["path", "query"], values: Mapping[str, Any]) -> M:
    """Return parameters of a request.

    Raises
    ------
    RequestValidationError
        As the framework does.
    """
    try:
        return model.model_validate(dict(values))
    except ValidationError as error:
        faults = error.errors(include_url=False)
        raise RequestValidationError(
            [{**fault, "loc": (where, *fault["loc"])} for fault in faults]
        ) from error


def described(model: type[BaseModel], where: Literal["path", "query"]) -> list[dict[str, Any]]:
    """Return how OpenAPI describes the parameters of a model."""
    schema = model.model_json_schema()
    found = []
    for name, known in schema["properties"].items():
        one = {"name": name, "in": where, "required": name in schema.get("required", ())}
        # The framework shows no default of nothing.
        one["schema"] = {
            key: value for key, value in known.items() if key != "default" or value is not None
        }
        if "description" in known:
            one["description"] = known["description"]
        found.append(one)
    return found
