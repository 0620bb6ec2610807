"""No JSON body costs the API more than in proportion to its size, whatever its values are."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from tests.integration.api.web.test_requests import JSON, SERVER_FAULT, routes_with_bodies
from tests.support.equal_hashes import MODULUS
from tests.support.nightly import by_night

if TYPE_CHECKING:
    from tests.integration.api.conftest import Installation

FEW: Final = 3_000
MANY: Final = 4 * FEW
# Shorter times are those of the interpreter.
LEAST_S: Final = 0.15
MOST_RATIO: Final = 8.0
# Values with `count` members.
HOSTILE: Final[dict[str, Callable[[int], object]]] = {
    "integers of equal hashes": lambda count: [MODULUS * number for number in range(1, count)],
    "pairs of such integers": lambda count: [[MODULUS * n, MODULUS * n] for n in range(1, count)],
    "names": lambda count: {f"name {number}": number for number in range(count)},
    "numbers as names": lambda count: {str(MODULUS * number): number for number in range(count)},
    "items": lambda count: [{"id": MODULUS * number, "name": "a(" * 9} for number in range(count)],
    "digits": lambda count: "9" * 20 * count,
    "brackets": lambda count: "[(" * 10 * count,
}


@by_night
def test_a_body_four_times_as_large_costs_at_most_eight_times_as_much(
    installation: Installation,
) -> None:
    openapi = installation.client.get("/api/openapi.json").json()
    schemas = openapi["components"]["schemas"]
    slow = []
    for method, address, schema in routes_with_bodies(openapi):
        fields = schemas.get(schema.get("$ref", "").rpartition("/")[2], {}).get("properties", {})
        for field in (None, *fields):
            for kind, value in HOSTILE.items():

                def cost_s(count: int, field: str | None = field, value: Any = value) -> float:  # noqa: ANN401 - JSON
                    body = value(count) if field is None else {field: value(count)}
                    return _cost_s(installation, method, address, json.dumps(body))  # noqa: B023

                most_s = cost_s(MANY)
                if most_s >= LEAST_S and most_s > MOST_RATIO * (few_s := cost_s(FEW)):
                    # Once more, as another process may have had the processor's caches.
                    most_s = min(most_s, cost_s(MANY))
                    if most_s > MOST_RATIO * few_s:
                        slow.append(f"{method} {address} {field} {kind}: {few_s:.2f}, {most_s:.2f}")
    assert slow == []


def _cost_s(installation: Installation, method: str, address: str, body: str) -> float:
    """Return the processor time of this process, which is also the server's, for a request."""
    begun_s = time.process_time()
    answer = installation.client.request(
        method, address, content=body, headers={"Content-Type": JSON}
    )
    assert answer.status_code < SERVER_FAULT, (method, address, answer.text[:300])
    return time.process_time() - begun_s
