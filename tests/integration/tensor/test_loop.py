"""The loop between a training job and the server, on a real database."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import select, text

from app.tensor.models import TensorGroup, TensorPlan, TensorReport
from app.tensor.report import REPORTS_KEPT
from tests.support.tensor import HEALTHY, SLOW, TrainingJob

if TYPE_CHECKING:
    import httpx

    from app.platform.container import Container


@pytest.fixture
def job(client: httpx.Client) -> TrainingJob:
    """Return a known job whose plans are applied."""
    found = TrainingJob(client)
    found.report(*HEALTHY)
    assert found.switch("apply").status_code == 200
    return found


def states(container: Container) -> list[tuple[int, str, str]]:
    with container.engine.connect() as connection:
        rows = connection.execute(
            select(TensorPlan.version, TensorPlan.method, TensorPlan.state).order_by(
                TensorPlan.group_id, TensorPlan.version
            )
        )
        return [(row.version, row.method, row.state.value) for row in rows]


def test_a_straggler_that_comes_and_goes(container: Container, job: TrainingJob) -> None:
    assert job.report(*SLOW) is None
    plan = job.report(*SLOW)
    assert plan is not None
    assert (plan["schema"], plan["version"], plan["method"], plan["apply"]) == (
        "paceline.tensor-plan/1", 1, "semi", True,
    )  # fmt: skip
    assert (plan["attempt"], plan["group"], plan["world_size"], plan["columns"]) == (
        1, "0-0", 4, 1000,
    )  # fmt: skip
    first = plan["ranks"][0]
    assert first["resized_columns"] == 250
    assert first["gamma"] == 0.25
    assert sum(first["to"].values()) == first["migrated_columns"]
    assert [entry["received_columns"] for entry in plan["ranks"][1:]] == list(first["to"].values())
    assert plan["expires_step"] == job.step + 200
    assert states(container) == [(1, "semi", "in_force")]

    # The faster steps under the plan are no recovery.
    assert job.report(*SLOW, steps=5) is None
    assert job.report(*HEALTHY) is None
    gone = job.report(*HEALTHY)
    assert gone is not None
    assert (gone["version"], gone["method"]) == (2, "none")
    assert not any(entry["resized_columns"] or entry["to"] for entry in gone["ranks"])
    assert states(container) == [(1, "semi", "withdrawn"), (2, "none", "in_force")]

    with container.engine.connect() as connection:
        made = connection.execute(
            select(TensorPlan.predicted_time_s, TensorPlan.measured_time_s).where(
                TensorPlan.version == 1
            )
        ).one()
        free = connection.execute(
            select(TensorReport.free_times_s).where(TensorReport.step == 6)
        ).scalar_one()
    assert made.measured_time_s == pytest.approx(made.predicted_time_s, rel=0.05)
    assert free == pytest.approx(list(SLOW))


def test_one_clear_report_is_enough_to_plan_and_to_withdraw(
    container: Container, job: TrainingJob
) -> None:
    assert job.report(*HEALTHY, steps=10) is None
    plan = job.report(*SLOW)
    assert plan is not None
    assert plan["method"] == "semi"
    assert job.report(*SLOW, steps=5) is None
    gone = job.report(*HEALTHY)
    assert gone is not None
    assert gone["method"] == "none"
    assert states(container) == [(1, "semi", "withdrawn"), (2, "none", "in_force")]


def test_reported_shares_remove_the_plan_from_measured_times(
    container: Container, job: TrainingJob
) -> None:
    job.report(*SLOW, steps=2)
    answer = job.send(
        *SLOW, times_s=[4.0, 1.2, 1.2, 1.2], matmul_s=[3.0, 1.0, 1.0, 1.0], computed=[0.5, 1, 1, 1]
    )
    assert answer.status_code == 202
    with container.engine.connect() as connection:
        free = connection.execute(
            select(TensorReport.free_times_s).order_by(TensorReport.number.desc()).limit(1)
        ).scalar_one()
    assert free == pytest.approx([7.0, 1.2, 1.2, 1.2])


def test_sizes_are_kept_and_those_of_other_layers_refused(
    container: Container, job: TrainingJob
) -> None:
    heads = {"kind": "hidden_unit", "width": 64, "tokens": 32, "layers": 2, "units": 8}
    columns = {"kind": "column", "width": 64, "tokens": 32, "layers": 2, "units": 500}
    sizes = [columns | {"plans": "step"}, heads | {"plans": "once"}]
    assert job.send(*HEALTHY, sizes=sizes).status_code == 202
    assert job.send(*HEALTHY).status_code == 202
    assert job.send(*HEALTHY, sizes=[sizes[0] | {"tokens": 64}, sizes[1]]).status_code == 202
    refused = job.send(*HEALTHY, sizes=[sizes[0] | {"layers": 3}, sizes[1]])
    assert (refused.status_code, refused.json()["code"]) == (409, "tensor.group_differs")
    assert refused.json()["faults"][0]["column"] == "sizes"
    with container.engine.connect() as connection:
        stored = connection.execute(select(TensorGroup.sizes)).scalar_one()
    assert stored is not None
    assert [(item.units, item.tokens) for item in stored] == [(500, 64), (8, 32)]


def test_a_job_that_was_not_switched_gets_advice_alone(
    container: Container, client: httpx.Client
) -> None:
    job = TrainingJob(client)
    plan = job.report(*SLOW, steps=2)
    assert plan is not None
    assert plan["apply"] is False
    assert job.plan is None
    assert job.ack(1).json()["code"] == "tensor.superseded"
    assert states(container) == [(1, "semi", "advised")]


def test_a_plan_that_the_job_forbids_stays_advice(job: TrainingJob) -> None:
    job.says["apply"] = False
    plan = job.report(*SLOW, steps=2)
    assert plan is not None
    assert plan["apply"] is False


def test_switching_makes_another_version_and_is_written_down(job: TrainingJob) -> None:
    assert job.switch("advise", by="bob").status_code == 200
    advised = job.report(*SLOW, steps=2)
    assert advised is not None

    job.switch("apply")
    offered = job.ask().json()
    assert (offered["version"], offered["apply"]) == (2, True)
    assert offered["ranks"] == advised["ranks"]
    job.take(offered)

    found = job.switch("advise", by="carol", expires_after_steps=50).json()
    assert (found["mode"], found["expires_after_steps"]) == ("advise", 50)
    assert [(item["mode"], item["by"]) for item in found["history"]] == [
        ("advise", "carol"), ("apply", "ann"), ("advise", "bob"), ("apply", "ann"),
    ]  # fmt: skip
    taken_back = job.ask().json()
    assert (taken_back["version"], taken_back["method"], taken_back["apply"]) == (3, "none", True)
    # Switched off, the server still makes the job undo the applied plan.
    job.take(taken_back)
    assert job.report(*SLOW, steps=2) is not None


# With a budget of a tenth, the gain is below 5 %, so nothing is left out.
@pytest.mark.parametrize(("wanted", "gamma"), [(0.1, 0.0), (0.9, 0.25), (None, 0.25)])
def test_the_server_only_lowers_the_budget(
    job: TrainingJob, wanted: float | None, gamma: float
) -> None:
    job.switch("apply", max_gamma=wanted)
    plan = job.report(*SLOW, steps=2)
    assert plan is not None
    assert max(entry["gamma"] for entry in plan["ranks"]) == gamma


def test_a_lower_budget_replaces_the_plan_with_the_next_report(job: TrainingJob) -> None:
    job.report(*SLOW, steps=2)
    job.switch("apply", max_gamma=0.0)
    plan = job.report(*SLOW)
    assert plan is not None
    assert max(entry["gamma"] for entry in plan["ranks"]) == 0


def test_a_plan_that_one_rank_cannot_apply_is_taken_back_and_its_method_left_out(
    container: Container, job: TrainingJob
) -> None:
    job.report(*SLOW)
    plan = job.send(*SLOW).json()["plan"]
    refused = {"applied": False, "ranks": [2], "reason": "out of memory"}
    assert job.ack(plan["version"], **refused).status_code == 204
    assert job.ack(plan["version"], **refused).status_code == 204
    assert states(container) == [(1, "semi", "refused"), (2, "none", "offered")]

    other = job.report(*SLOW, steps=2)
    assert other is not None
    assert other["method"] not in ("none", "semi")


def test_a_plan_is_in_force_when_every_rank_has_acknowledged_it(
    container: Container, job: TrainingJob
) -> None:
    job.report(*SLOW)
    job.send(*SLOW)
    for ranks in ([0, 1], [1, 2], [2]):
        assert job.ack(1, ranks=ranks).status_code == 204
        assert states(container) == [(1, "semi", "offered")]
    assert job.ack(1, ranks=[3]).status_code == 204
    assert states(container) == [(1, "semi", "in_force")]


def test_plans_are_renewed_by_reports_and_expire_without(
    container: Container, job: TrainingJob
) -> None:
    job.report(*SLOW, steps=2)
    job.step += 50
    assert job.send(*SLOW).json()["expires_step"] == job.step + 200

    job.step += 300
    job.plan = None
    answer = job.send(*SLOW).json()
    assert (answer["plan_version"], answer["plan"]) == (1, None)
    assert states(container) == [(1, "semi", "expired")]
    again = job.report(*SLOW, steps=2)
    assert again is not None
    assert again["version"] == 2


def test_a_plan_does_not_outlive_its_attempt(container: Container, job: TrainingJob) -> None:
    job.report(*SLOW, steps=2)
    old = dict(job.says)
    job.says["attempt"], job.plan, job.known, job.step = 2, None, 0, 0

    assert job.report(*SLOW) is None
    assert states(container) == [(1, "semi", "expired")]
    with container.engine.connect() as connection:
        assert connection.execute(select(TensorReport.step)).scalars().all() == [1]
    refused = job.client.post(f"{job.address}/timings", json=job.body(*SLOW, **old, step=900))
    assert (refused.status_code, refused.json()["code"]) == (409, "tensor.old_attempt")
    # A new attempt may have other sizes, and starts the numbers of its plans anew.
    assert job.report(*SLOW) is not None
    assert job.known == 1


def test_a_waiting_job_gets_a_new_plan_at_once(job: TrainingJob) -> None:
    found: list[httpx.Response] = []

    def wait() -> None:
        found.append(job.ask(wait_s=30))

    job.report(*SLOW)
    waiter = threading.Thread(target=wait)
    waiter.start()
    job.send(*SLOW)
    waiter.join(timeout=30)
    assert found[0].json()["version"] == 1
    assert job.ask(after=1).status_code == 204


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        pytest.param({"times_s": [1, 1, 1]}, (422, "tensor.invalid", "matmul_s"), id="lengths"),
        pytest.param({"world_size": 5}, (422, "tensor.invalid", "times_s"), id="size of the group"),
        pytest.param({"hosts": ["a"]}, (422, "tensor.invalid", "hosts"), id="hosts"),
        pytest.param({"max_gamma": 2}, (422, "tensor.invalid", "max_gamma"), id="budget"),
        pytest.param({"apply": "yes"}, (422, "tensor.invalid", "apply"), id="no flag"),
        pytest.param({"computed": [1, 1]}, (422, "tensor.invalid", "computed"), id="computed"),
        pytest.param(
            {"computed": [1, 0, 1, 1]},
            (422, "tensor.invalid", "computed[1]"),
            id="nothing computed",
        ),
        pytest.param(
            {"columns": 500}, (409, "tensor.group_differs", "columns"), id="other columns"
        ),
        pytest.param({"unit": 500}, (409, "tensor.group_differs", "unit"), id="other units"),
        pytest.param({"step": 1}, (409, "tensor.out_of_order", "step"), id="a step twice"),
        pytest.param(
            {"plan_version": 7}, (409, "tensor.unknown_plan", "plan_version"), id="unknown plan"
        ),
    ],
)
def test_reports_that_contradict_themselves_or_what_is_stored(
    container: Container,
    job: TrainingJob,
    changes: dict[str, Any],
    expected: tuple[int, str, str],
) -> None:
    status, code, column = expected
    refused = job.send(*SLOW, **changes)
    assert (refused.status_code, refused.json()["code"]) == (status, code)
    assert column in [fault.get("column") for fault in refused.json()["faults"]]
    with container.engine.connect() as connection:
        assert connection.execute(text("SELECT count(*) FROM tensor_report")).scalar_one() == 1
        assert connection.execute(select(TensorGroup.step)).scalar_one() == 1


def test_no_number_is_refused_with_its_place(job: TrainingJob) -> None:
    job.step += 1
    body = json.dumps(job.body(*SLOW))
    for written, code, column in (
        (".nan", "tensor.invalid", "times_s[1]"),
        (".inf", "tensor.invalid", "times_s[1]"),
        ("NaN", "tensor.malformed", None),
    ):
        sent = body.replace('"times_s": [8.0, 1.0', f'"times_s": [8.0, {written}')
        refused = job.client.post(f"{job.address}/timings", content=sent)
        assert (refused.status_code, refused.json()["code"]) == (422, code), written
        assert refused.json()["faults"][0].get("column") == column
    assert job.client.post(f"{job.address}/timings", content=body).status_code == 202


def test_unknown_jobs_groups_and_attempts_are_refused(job: TrainingJob) -> None:
    nowhere = TrainingJob(job.client, name="other")
    assert nowhere.ask().status_code == 404
    assert nowhere.switch("apply").status_code == 404
    assert TrainingJob(job.client, group="0-1").ask().status_code == 404
    assert TrainingJob(job.client, group="a b").ask().json()["code"] == "request.invalid"
    assert job.ask(attempt=9).status_code == 404
    assert job.ack(1).status_code == 404
    assert job.ack(1, attempt=0).json()["code"] == "tensor.old_attempt"
    job.report(*SLOW, steps=2)
    assert job.ack(1, ranks=[4]).json()["faults"][0]["column"] == "ranks[0]"
    assert TrainingJob(job.client, name=" x ").send(*SLOW).json()["code"] == "job.invalid_name"


def test_the_same_step_at_the_same_time_counts_once(container: Container, job: TrainingJob) -> None:
    job.step += 1
    body, answers = job.body(*SLOW), []

    def send() -> None:
        answers.append(job.client.post(f"{job.address}/timings", json=body).status_code)

    threads = [threading.Thread(target=send) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answers) == [202, 409, 409, 409]
    with container.engine.connect() as connection:
        assert connection.execute(select(TensorGroup.reports)).scalar_one() == 2


def test_a_group_keeps_its_latest_reports(container: Container, job: TrainingJob) -> None:
    with container.engine.begin() as connection:
        connection.execute(
            text(
                """
                INSERT INTO tensor_report (project_id, group_id, number, step, times_s, matmul_s,
                    free_times_s, free_matmul_s)
                SELECT project_id, group_id, number + n, step, times_s, matmul_s, free_times_s,
                    free_matmul_s
                FROM tensor_report, generate_series(1, :more) AS n
                """
            ),
            {"more": REPORTS_KEPT + 98},
        )
        connection.execute(text("UPDATE tensor_group SET reports = :n"), {"n": REPORTS_KEPT + 99})
    job.report(*HEALTHY)
    with container.engine.connect() as connection:
        numbers = connection.execute(select(TensorReport.number)).scalars().all()
    assert len(numbers) == REPORTS_KEPT
    assert min(numbers) == 101
