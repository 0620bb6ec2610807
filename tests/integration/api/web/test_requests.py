"""Every JSON body of the API, drawn from its schema and spoiled, never causes a 5xx answer."""

from __future__ import annotations

import json
import re
import uuid
from typing import TYPE_CHECKING, Any, Final

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from tests.support.nightly import BY_NIGHT
from tests.support.schemas import documents

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.integration.api.conftest import Installation

SERVER_FAULT: Final = 500
JSON: Final = "application/json"
# Number of examples of each route. By day they are the same in every run, so that a failure can be
# reproduced.
EXAMPLES: Final = 300 if BY_NIGHT else 20
DRAWN: Final = settings(
    max_examples=EXAMPLES,
    deadline=None,
    database=None,
    derandomize=not BY_NIGHT,
    phases=(Phase.generate,),
    suppress_health_check=list(HealthCheck),
)


def routes_with_bodies(openapi: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield method, address and schema of every route that takes JSON."""
    for path, operations in openapi["paths"].items():
        for method, operation in operations.items():
            content = operation.get("requestBody", {}).get("content", {})
            if JSON in content:
                # Addresses of unknown objects, and of any job.
                some = re.sub(r"\{(job|group|name|host|model)\}", "some", path)
                address = re.sub(r"\{(n|number|attempt|version|producer)\}", "1", some)
                yield (
                    method,
                    re.sub(r"\{\w+\}", str(uuid.UUID(int=7)), address),
                    content[JSON]["schema"],
                )


@pytest.mark.slow
def test_no_json_body_is_a_fault_of_the_server(installation: Installation) -> None:
    openapi = installation.client.get("/api/openapi.json").json()
    known = openapi["components"]["schemas"]
    routes = list(routes_with_bodies(openapi))
    assert len(routes) > 30
    answers = {status for route in routes for status in _sent(installation, *route, known=known)}
    # Some bodies are accepted, and some are refused with the place of the fault.
    assert {422} < answers
    assert any(status < 300 for status in answers)


def _sent(
    installation: Installation,
    method: str,
    address: str,
    schema: dict[str, Any],
    *,
    known: dict[str, Any],
) -> set[int]:
    """Send bodies to a route, and return the statuses of the answers."""
    answers: set[int] = set()

    @DRAWN
    @given(body=documents(schema, known))
    def send(body: Any) -> None:  # noqa: ANN401 - JSON
        content = json.dumps(body)
        answer = installation.client.request(
            method, address, content=content, headers={"Content-Type": JSON}
        )
        assert answer.status_code < SERVER_FAULT, (method, address, content[:300], answer.text)
        answers.add(answer.status_code)

    send()
    return answers
