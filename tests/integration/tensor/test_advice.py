"""Advice on tensor-parallel groups over HTTP."""

from __future__ import annotations

import json

import httpx
import pytest

from app.analysis.json_text import to_json
from app.analysis.mitigation.tensor.advice import advise
from app.tensor import api as advice
from app.tensor.api import MOST_BODY_BYTES
from app.tensor.spec import parse_problem

PLAN = "/api/v1/mitigation/plan"


def post(client: httpx.Client, content: bytes | str) -> httpx.Response:
    return client.post(PLAN, content=content)


def test_the_answer_is_the_document_of_the_command(client: httpx.Client) -> None:
    answer = post(client, json.dumps(advice.EXAMPLE))
    assert answer.status_code == 200
    assert answer.json() == json.loads(to_json(advise(parse_problem(advice.EXAMPLE))))


def test_yaml_is_read_as_well(client: httpx.Client) -> None:
    answer = post(client, "times_s: [2, 1]\nmatmul_s: [2, 1]\ncolumns: 64\n")
    assert answer.json()["chosen"] == "semi"


@pytest.mark.parametrize(
    ("content", "status", "code"),
    [
        pytest.param(b'{"times_s": [NaN, 1]}', 422, "tensor.malformed", id="NaN in JSON"),
        pytest.param(b"\xff", 422, "tensor.malformed", id="no text"),
        pytest.param(b"x" * (MOST_BODY_BYTES + 1), 413, "body.too_large", id="too much"),
        pytest.param(b"{}", 422, "tensor.invalid", id="nothing"),
    ],
)
def test_refusals(client: httpx.Client, content: bytes, status: int, code: str) -> None:
    answer = post(client, content)
    assert (answer.status_code, answer.json()["code"]) == (status, code)


def test_faults_have_their_paths(client: httpx.Client) -> None:
    answer = post(client, json.dumps({**advice.EXAMPLE, "matmul_s": [7.6, 0.8, 1.5, 0.8]}))
    assert answer.json()["faults"] == [
        {
            "code": "conflict",
            "message": "matmul_s[2] is over times_s[2], of which it is a part",
            "column": "matmul_s[2]",
        }
    ]
