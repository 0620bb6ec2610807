"""The pages of tensor-parallel groups, and the CSV files of their figures."""

from __future__ import annotations

import csv
from typing import TYPE_CHECKING

from sqlalchemy import text

from tests.support.tensor import HEALTHY, SLOW, TrainingJob

if TYPE_CHECKING:
    import httpx

    from app.platform.container import Container


def rows(client: httpx.Client, name: str) -> list[dict[str, str]]:
    answer = client.get(f"/jobs/llm/tensor/0-0/{name}")
    assert answer.status_code == 200
    return list(csv.DictReader(answer.text.splitlines()))


def test_a_job_without_sessions_has_its_groups_for_a_page(client: httpx.Client) -> None:
    TrainingJob(client).report(*HEALTHY)
    TrainingJob(client, group="0-1").report(*SLOW, steps=2)
    answer = client.get("/jobs/llm", follow_redirects=True)
    assert answer.status_code == 200, answer.text
    assert answer.url.path == "/jobs/llm/tensor"
    assert "1 of 2\u00a0tensor-parallel groups has a straggler" in answer.text


def test_files_hold_what_the_page_shows(client: httpx.Client) -> None:
    job = TrainingJob(client)
    job.report(*HEALTHY)
    job.switch("apply")
    job.report(*SLOW, steps=4)

    times = rows(client, "times.csv")
    assert [row["plan"] for row in times] == ["", "", "", "1", "1"]
    assert float(times[-1]["rank_0_without_plan_s"]) == 8.0
    ranks = rows(client, "ranks.csv")
    assert ranks[0]["resized"] == "250"
    assert sum(int(row["received"]) for row in ranks) == int(ranks[0]["migrated"])
    assert [(row["version"], row["state"]) for row in rows(client, "plans.csv")] == [
        ("1", "in_force")
    ]
    assert {row["loss_risk"] for row in rows(client, "alternatives.csv")} == {
        "none", "small", "beyond_budget",
    }  # fmt: skip
    advice = client.get("/jobs/llm/tensor/0-0/advice.json").json()
    assert advice["schema"] == "paceline.mitigation/1"


def _replacement(client: httpx.Client) -> str:
    text = client.get("/jobs/llm/tensor/0-0").text.replace("\u00a0", " ")
    return text.partition('aria-label="Replacement"')[2].partition("</section>")[0]


def test_a_replacement_is_weighed_against_the_restart_that_it_costs(
    client: httpx.Client, container: Container
) -> None:
    job = TrainingJob(client)
    job.report(*HEALTHY)
    assert _replacement(client) == ""

    job.report(8.0, 1.0, 1.0, 1.0)
    advised = _replacement(client)
    # 7 of 8 s a step are saved, so ten minutes of restart pay after 11 min 25 s.
    assert "Or replace rank 0: 88 % less, no loss" in advised
    assert "about 10 min of restart; it pays after 11 min without a plan" in advised
    assert "assumed" in advised

    job.says |= {"attempt": 2, "hosts": ["node-7", *["node-8"] * 3]}
    job.step, job.known = 0, 0
    job.switch("apply")
    job.report(*SLOW, steps=4)
    with container.engine.begin() as connection:
        connection.execute(
            text(
                "UPDATE tensor_group SET reported_at = (SELECT max(created_at) FROM tensor_group)"
                " - interval '22 minutes' WHERE attempt = 1"
            )
        )
    planned = _replacement(client)
    assert "node-7" in planned
    assert "about 22 min of restart" in planned
    assert "at this plan" in planned
    assert "The job’s last restart took this long" in planned


def test_an_unknown_group_has_a_page_that_says_so(client: httpx.Client) -> None:
    TrainingJob(client).report(*HEALTHY)
    for address in ("other/tensor", "llm/tensor/9-9"):
        answer = client.get(f"/jobs/{address}")
        assert answer.status_code == 404
        assert "tensor-parallel group" in answer.text
    assert client.get("/jobs/llm/tensor/0-0/nothing.csv").status_code == 404
