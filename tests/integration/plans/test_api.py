"""Plans over HTTP, on a real database."""

from __future__ import annotations

import json
import threading
import uuid
from typing import TYPE_CHECKING, Any, cast

import pytest
import yaml
from jsonschema import Draft202012Validator

from app.analysis.json_text import plain
from app.analysis.planning.build import plan_document
from app.analysis.planning.job.costs import MEMORY_MARGIN, least_bytes
from app.analysis.planning.job.spec import JobSpec
from app.analysis.planning.plan import plan
from app.plans.specs.spec import parse_spec, read_request
from tests.support.plans import Asked, ask, do, open_run, plan_row, small_job_spec, small_spec

if TYPE_CHECKING:
    from collections.abc import Callable

    import httpx

    from app.platform.container import Container

PLANS = "/api/v1/plans"
ONE_NODE = [{"type": "A100", "nodes": 1, "gpus_per_node": 2}]


def post(client: httpx.Client, **asked: Any) -> httpx.Response:  # noqa: ANN401 - JSON
    return client.post(PLANS, json=asked)


def asked_for(container: Container, response: httpx.Response) -> Asked:
    found = uuid.UUID(response.json()["plan"])
    return Asked(found, open_run(container, found))


def test_a_plan_is_stored_searched_and_read(container: Container, client: httpx.Client) -> None:
    response = post(client, spec=small_spec(), name="twelve layers")
    assert response.status_code == 202
    body = response.json()
    assert response.headers["location"] == f"{PLANS}/{body['plan']}"
    assert body["url"].endswith(f"/plans/{body['plan']}")
    assert (body["state"], client.get(f"{PLANS}/{body['plan']}").json()["ahead"]) == ("queued", 0)

    assert do(container, asked_for(container, response))

    found = client.get(f"{PLANS}/{body['plan']}").json()
    expected = plan_document(plan(parse_spec(small_spec())))
    assert found["state"] == "planned"
    assert found["gap"] == 0
    assert found["spec"] == small_spec()
    assert (found["plan"]["schema"], found["plan"]["optimal"]) == ("paceline.plan/1", True)
    # The command line's format: keys of other methods are left out.
    assert {**found["plan"], "planning_time_s": 0, "comparison": 0} == {
        **cast("dict[str, object]", plain(expected)), "planning_time_s": 0, "comparison": 0,
    }  # fmt: skip
    assert set(found["plan"]["comparison"]) == {"ditto", "greedy"}
    starts = found["timeline"]["starts"]["forward"]
    assert [len(stage) for stage in starts] == [16] * len(found["plan"]["stages"])
    assert starts[0][0] == 0
    listed = client.get(PLANS).json()["plans"]
    assert [row["name"] for row in listed] == ["twelve layers"]
    assert listed[0]["headline"]["iteration_time_ms"] == found["plan"]["iteration_time_ms"]


@pytest.mark.parametrize("write", [yaml.safe_dump, json.dumps])
def test_a_specification_may_be_a_text(
    container: Container, client: httpx.Client, write: Callable[[object], str]
) -> None:
    response = post(client, spec=write(small_spec()))
    assert do(container, asked_for(container, response))
    assert plan_row(container, uuid.UUID(response.json()["plan"])).state == "planned"


def test_keys_that_are_numbers_in_yaml_are_the_keys_of_json(
    container: Container, client: httpx.Client
) -> None:
    text = yaml.safe_dump(small_spec()) + "network: {allreduce_in_node_ms: {'*': {2: 0.4}}}\n"
    as_mapping = small_spec(network={"allreduce_in_node_ms": {"*": {"2": 0.4}}})
    first, second = post(client, spec=text), post(client, spec=as_mapping)
    assert (first.status_code, second.status_code) == (202, 200)
    assert do(container, asked_for(container, first))


def test_the_same_question_is_the_same_plan(container: Container, client: httpx.Client) -> None:
    answers: list[httpx.Response] = []
    threads = [
        threading.Thread(target=lambda: answers.append(post(client, spec=small_spec())))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answer.status_code for answer in answers) == [200, 200, 200, 202]
    assert len({answer.json()["plan"] for answer in answers}) == 1
    assert do(container, asked_for(container, answers[0]))
    again = post(client, spec=small_spec())
    assert (again.status_code, again.json()["state"]) == (200, "planned")
    # Browsers write whole numbers without a decimal point.
    as_browser = json.loads(json.dumps(small_spec()).replace(".0", ""))
    assert post(client, spec=as_browser).status_code == 200
    assert post(client, spec=small_spec(), method="ditto").status_code == 202
    assert post(client, spec=small_spec(), name="another").status_code == 202


def test_every_fault_is_named_at_once_with_its_path(client: httpx.Client) -> None:
    spec = small_spec(microbatches=0, extra=1)
    spec["devices"][1]["nodes"] = "two"
    spec["model"] = {"layers": [{"forward_ms": 1}, {"backward_ms": -1}]}
    response = post(client, spec=spec, method="magic", time_limit_s=0)
    problem = response.json()
    assert (response.status_code, problem["code"]) == (422, "spec.invalid")
    assert {fault["column"]: fault["code"] for fault in problem["faults"]} == {
        "method": "unknown_value",
        "time_limit_s": "out_of_range",
        "extra": "unknown_key",
        "model.layers[1].forward_ms": "missing",
        "model.layers[1].backward_ms": "out_of_range",
        "devices[1].nodes": "bad_type",
        "microbatches": "out_of_range",
    }


@pytest.mark.parametrize(
    ("content", "status", "code"),
    [
        (b"", 422, "spec.malformed"),
        (b"\xff\xfe", 422, "spec.malformed"),
        (b"[" * 100_000, 422, "spec.malformed"),
        (b"[]", 422, "spec.invalid"),
        (b'{"method": "optimal"}', 422, "spec.invalid"),
        (b'{"spec": "a: [b"}', 422, "spec.malformed"),
        (b'{"spec": {"model": "\\u0000"}}', 422, "spec.invalid"),
        (b" " * (1024 * 1024 + 1), 413, "body.too_large"),
    ],
)
def test_an_invalid_request_is_refused(
    client: httpx.Client, content: bytes, status: int, code: str
) -> None:
    response = client.post(PLANS, content=content)
    assert (response.status_code, response.json()["code"]) == (status, code)
    assert client.get(PLANS).json() == {"plans": []}


def test_more_computations_than_fit_in_memory_are_refused(client: httpx.Client) -> None:
    spec = small_spec(microbatches=100_000)
    spec["model"] = {"layers": [{"forward_ms": 1}] * 900}
    spec["devices"][0]["nodes"] = 200
    problem = post(client, spec=spec).json()
    assert [(fault["code"], fault["column"]) for fault in problem["faults"]] == [
        ("too_large", "microbatches")
    ]


def test_no_template_is_an_answer_with_the_nearest_changes(
    container: Container, client: httpx.Client
) -> None:
    spec = small_spec()
    for device in spec["devices"]:
        device["memory_bytes"] = 1e9
    response = post(client, spec=spec)
    assert do(container, asked_for(container, response))
    found = client.get(response.headers["location"]).json()
    assert (found["state"], found["reason_code"]) == ("infeasible", "plan.infeasible")
    assert found["plan"] is None
    assert "more_memory" in {fault["code"] for fault in found["faults"]}


def test_a_plan_that_waits_can_be_canceled_and_asked_for_again(
    container: Container, client: httpx.Client
) -> None:
    response = post(client, spec=small_spec())
    asked, address = asked_for(container, response), response.headers["location"]
    for _ in range(2):
        canceled = client.post(f"{address}/cancel")
        assert (canceled.status_code, canceled.json()["state"]) == (200, "canceled")
    assert not do(container, asked)
    again = post(client, spec=small_spec())
    assert (again.status_code, again.json()) == (202, response.json())
    assert do(container, asked_for(container, again))
    refused = client.post(f"{address}/cancel")
    assert (refused.status_code, refused.json()["code"]) == (409, "plan.ended")


def test_a_plan_that_is_not_there(client: httpx.Client) -> None:
    for response in (
        client.get(f"{PLANS}/{uuid.uuid4()}"),
        client.post(f"{PLANS}/{uuid.uuid4()}/cancel"),
    ):
        assert (response.status_code, response.json()["code"]) == (404, "not_found")


def test_plans_are_listed_latest_first(container: Container, client: httpx.Client) -> None:
    for name in ("first", "second", "third"):
        ask(container, small_spec(), name=name)
    rows = client.get(PLANS, params={"limit": 2}).json()["plans"]
    assert [row["name"] for row in rows] == ["third", "second"]


def test_ditto_brings_its_folding_and_the_templates_of_oobleck(
    container: Container, client: httpx.Client
) -> None:
    response = post(client, spec=small_spec(), method="ditto")
    assert do(container, asked_for(container, response))
    found = client.get(response.headers["location"]).json()["plan"]
    assert found["folding"]["weakest"] == "v100"
    assert found["oobleck_templates"]
    assert found["lower_bound_ms"] is None


def test_the_openapi_document_shows_the_parts_of_a_plan(client: httpx.Client) -> None:
    schemas = client.get("/api/openapi.json").json()["components"]["schemas"]
    plan_schema = schemas["PlanDocument"]["properties"]
    assert plan_schema["schema"]["const"] == "paceline.plan/1"
    assert plan_schema["stages"]["items"] == {"$ref": "#/components/schemas/PlannedStage"}
    assert "memory_limit_bytes" in schemas["PlannedStage"]["required"]
    assert "replicas" not in schemas["PlannedStage"]["required"]


def test_the_openapi_document_shows_what_a_request_holds(client: httpx.Client) -> None:
    document = client.get("/api/openapi.json").json()
    body = document["paths"][PLANS]["post"]["requestBody"]["content"]["application/json"]
    schemas = document["components"]["schemas"]
    assert body["schema"] == {"$ref": "#/components/schemas/WrittenRequest"}
    assert schemas["WrittenRequest"]["properties"]["method"]["enum"] == [
        "optimal", "ditto", "greedy", "exhaustive",
    ]  # fmt: skip
    assert schemas["WrittenRequest"]["properties"]["spec"]["anyOf"] == [
        {"$ref": "#/components/schemas/WrittenSpec"}, {"$ref": "#/components/schemas/WrittenJob"},
        {"type": "string"},
    ]  # fmt: skip
    assert schemas["WrittenSpec"]["required"] == ["model", "devices", "microbatches"]
    assert schemas["WrittenDevice"]["additionalProperties"] is False
    assert schemas["WrittenDevice"]["properties"]["nodes"] == {
        "maximum": 4096, "minimum": 1, "title": "Nodes", "type": "integer",
    }  # fmt: skip
    Draft202012Validator(
        {"$ref": "#/components/schemas/WrittenRequest", "components": document["components"]}
    ).validate(body["example"])


def test_a_whole_job_is_planned_and_shown(container: Container, client: httpx.Client) -> None:
    response = post(client, spec=small_job_spec(), name="a job")
    assert do(container, asked_for(container, response))
    plan_id = response.json()["plan"]
    found = client.get(f"{PLANS}/{plan_id}").json()
    assert (found["state"], found["gap"]) == ("planned", 0)
    sizes, pipelines = found["plan"]["parallelism"], found["plan"]["pipelines"]
    assert len(pipelines) == sizes["dp"]
    assert sum(one["microbatches"] for one in pipelines) * sizes["microbatch"] == 64
    page = client.get(f"/plans/{plan_id}", headers={"Accept": "text/html"})
    assert page.status_code == 200
    for shown in ("64\N{NO-BREAK SPACE}sequences a batch", "If nodes are lost", "Megatron-Core"):
        assert shown in page.text
    assert f"--tensor-model-parallel-size {sizes['tp']}" in page.text
    assert client.get(f"/plans/{plan_id}/plan.json").json() == found["plan"]
    rows = client.get(f"/plans/{plan_id}/pipelines.csv").text.splitlines()
    assert len(rows) == 1 + sizes["dp"]
    for name, of in (("losses", "after_losses"), ("simpler", "comparison")):
        rows = client.get(f"/plans/{plan_id}/{name}.csv").text.splitlines()
        assert len(rows) == 1 + len(found["plan"][of]) > 1
    listed = client.get("/plans", headers={"Accept": "text/html"})
    assert listed.status_code == 200
    assert f"/plans/{plan_id}" in listed.text
    edited = client.get("/plans", params={"of": plan_id})
    assert "global_batch: 64" in edited.text


def test_a_whole_job_that_contradicts_itself_is_refused(client: httpx.Client) -> None:
    response = post(client, spec=small_job_spec(parallelism={"tp": 16}))
    assert response.status_code == 422
    [fault] = response.json()["faults"]
    assert (fault["column"], fault["code"]) == ("parallelism.tp", "conflict")
    assert "8 would do" in fault["message"]
    response = post(client, spec=small_job_spec(), method="ditto")
    assert [fault["column"] for fault in response.json()["faults"]] == ["method"]


def test_a_job_whose_states_alone_fit_nowhere_is_refused(client: httpx.Client) -> None:
    small = [{"type": "A100", "nodes": 1, "gpus_per_node": 2, "memory_bytes": 2**30}]
    response = post(client, spec=small_job_spec(devices=small))
    assert (response.status_code, response.json()["code"]) == (422, "spec.invalid")
    [fault] = response.json()["faults"]
    assert (fault["code"], fault["column"]) == ("does_not_fit", "devices[0].nodes")
    assert "the least that would do" in fault["message"]


def test_a_plan_of_a_job_that_fits_nowhere_names_what_it_needs(
    container: Container, client: httpx.Client
) -> None:
    request = read_request({"spec": small_job_spec(devices=ONE_NODE)})
    assert isinstance(request.spec, JobSpec)
    # Memory for the states only, without activations.
    needed = least_bytes(request.spec) / 2 / (1 - MEMORY_MARGIN) * 1.001
    small = [{**ONE_NODE[0], "memory_bytes": needed}]
    response = post(client, spec=small_job_spec(devices=small))
    assert do(container, asked_for(container, response))
    found = client.get(f"{PLANS}/{response.json()['plan']}").json()
    assert (found["state"], found["reason_code"]) == ("infeasible", "plan.infeasible")
    assert {"more_memory", "more_nodes"} <= {fault["code"] for fault in found["faults"]}
    page = client.get(f"/plans/{response.json()['plan']}", headers={"Accept": "text/html"})
    assert "there is a plan" in page.text


def test_presets_of_whole_jobs_fill_the_form(client: httpx.Client) -> None:
    page = client.get("/plans", params={"preset": "llama-3-70b"})
    assert "Llama 3 70 B on 128 H100" in page.text
    assert "global_batch: 512" in page.text
