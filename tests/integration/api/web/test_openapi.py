"""The OpenAPI document serves generators of clients: unique names, complete references."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.integration.api.conftest import Installation


@pytest.fixture
def document(installation: Installation) -> dict[str, Any]:
    # Read twice: the second reading must not add the same parts to the document again.
    first = installation.client.get("/api/openapi.json").json()
    again: dict[str, Any] = installation.client.get("/api/openapi.json").json()
    assert first == again
    return again


def test_schemas_have_unique_titles_without_modules_of_the_program(
    document: dict[str, Any], installation: Installation
) -> None:
    schemas = document["components"]["schemas"]
    # A generated class has the name of its title; of two that are equal, one would be lost.
    assert {schema["title"] for schema in schemas.values()} == set(schemas)
    assert not [name for name in schemas if "__" in name]
    text = installation.client.get("/api/openapi.json").text
    used = set(re.findall(r'"#/components/schemas/([^"]+)"', text))
    assert used <= set(schemas)
    assert {"HostsFigureBody", "JobsFigureBody"} <= used


def test_every_operation_has_an_id_a_success_and_the_project_s_header(
    document: dict[str, Any],
) -> None:
    operations = [
        (path, operation)
        for path, of_path in document["paths"].items()
        for operation in of_path.values()
    ]
    assert len({operation["operationId"] for _, operation in operations}) == len(operations) > 100
    for path, operation in operations:
        assert any(status.startswith("2") for status in operation["responses"]), path
        names = [parameter["name"] for parameter in operation.get("parameters", ())]
        assert names.count("Paceline-Project") == path.startswith("/api/"), path


def test_the_token_is_a_bearer_token(document: dict[str, Any]) -> None:
    assert document["components"]["securitySchemes"]["token"]["scheme"] == "bearer"
    assert {"token": []} in document["security"]
