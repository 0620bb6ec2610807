"""What-if questions over HTTP."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.integration.api.conftest import Installation


@pytest.fixture
def session(installation: Installation) -> str:
    found: str = installation.post().json()["session"]
    return found


def address(session: str) -> str:
    return f"/api/v1/sessions/{session}/what-if"


def fix(**selection: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
    return {"changes": [{"select": selection, "duration": "ideal"}]}


def test_a_fix_is_answered_with_its_gain(installation: Installation, session: str) -> None:
    installation.analyze_all()
    report = installation.client.get(f"/api/v1/sessions/{session}/report").json()
    stages = list(range(report["sizes"]["pp"]))
    answer = installation.client.post(address(session), json=fix(stages=stages))
    assert answer.status_code == 200
    body = answer.json()
    assert body["schema"] == "paceline.what-if/1"
    assert body["gain"] == pytest.approx(report["waste"])
    assert body["steps"] == report["steps"]["analyzed"]


def test_faults_of_a_question_are_named(installation: Installation, session: str) -> None:
    installation.analyze_all()
    answer = installation.client.post(address(session), json=fix(stages=[99]))
    assert (answer.status_code, answer.json()["code"]) == (422, "what_if.invalid")
    assert "no stage 99" in answer.json()["detail"]
    answer = installation.client.post(address(session), json={"changes": [{"scale": "fast"}]})
    assert answer.json()["faults"][0]["column"] == "changes[0].scale"


@pytest.mark.parametrize(
    ("question", "code", "column"),
    [
        ({"base": ["ideal"], **fix(stages=[0])}, "choice", "base"),
        (
            {"changes": [{"select": {"stages": [0]}, "duration": {}}]},
            "choice",
            "changes[0].duration",
        ),
        ({"changes": [{"select": {"stages": [0]}, "scale": 10**400}]}, "scale", "changes[0].scale"),
        ({"changes": [{"select": {"stages": [0]}, "scale": 1e308}]}, "scale", "changes[0].scale"),
        ({"changes": fix(stages=[0])["changes"] * 101}, "too_many_changes", "changes"),
        (fix(op_types=["separate-grads-all-reduce"]), "absent", "changes[0].select.op_types"),
    ],
)
def test_an_impossible_question_is_refused_at_its_place(
    installation: Installation, session: str, question: dict[str, Any], code: str, column: str
) -> None:
    installation.analyze_all()
    answer = installation.client.post(address(session), json=question)
    assert (answer.status_code, answer.json()["code"]) == (422, "what_if.invalid")
    (fault,) = answer.json()["faults"]
    assert (fault["code"], fault["column"]) == (code, column)


def test_a_session_without_a_verdict_cannot_be_asked(
    installation: Installation, session: str
) -> None:
    answer = installation.client.post(address(session), json=fix(stages=[0]))
    assert (answer.status_code, answer.json()["code"]) == (409, "what_if.no_verdict")
    answer = installation.client.post(address(str(uuid.uuid4())), json=fix(stages=[0]))
    assert (answer.status_code, answer.json()["code"]) == (404, "not_found")


def test_the_openapi_document_shows_what_a_question_holds(installation: Installation) -> None:
    document = installation.client.get("/api/openapi.json").json()
    operation = document["paths"]["/api/v1/sessions/{session}/what-if"]["post"]
    body = operation["requestBody"]["content"]["application/json"]
    schemas = document["components"]["schemas"]
    assert body["schema"] == {"$ref": "#/components/schemas/WrittenQuestion"}
    assert schemas["WrittenQuestion"]["properties"]["changes"]["maxItems"] == 100
    assert schemas["WrittenChange"]["properties"]["scale"]["maximum"] == 1000
    assert "grads-sync" in schemas["WrittenSelection"]["properties"]["op_types"]["items"]["enum"]
