"""Who may send for a job: tokens for some jobs, and the token that owns an attempt."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import func, select

from app.access.audit import list_entries
from app.access.models import AttemptOwner
from app.access.moves import move_job
from app.access.people import create_person
from app.access.rights import NEEDS
from app.access.sign_ins import write_refusals
from app.access.tokens import create_token, list_tokens, renew_token, revoke_token
from app.analysis.synthesis.job import JobModel
from app.analysis.synthesis.synthesize import synthesize
from app.analysis.trace.encode import to_parquet
from app.analysis.trace.model import Sizes
from app.errors import InvalidAccessError
from app.incidents.models.tables import IncidentState
from app.jobs.models import Job, JobNote
from app.platform.identity import Right, Role, matches_job
from app.sessions.models.tables import InboxItem, Intake, Session
from tests.integration.access.test_foreign import BODIES, QUERIES
from tests.integration.api import bodies
from tests.integration.api.chunks import of_session, rank_body, url
from tests.integration.api.pulse.sending import bodies as bodies_of_pulse
from tests.integration.api.pulse.sending import slow_job
from tests.support.alerting import Alerting
from tests.support.hanging import Hanging, archived, as_json, ras
from tests.support.tensor import SLOW, TrainingJob

if TYPE_CHECKING:
    import httpx

    from tests.integration.access.conftest import Company

INGEST, READ, OPERATE = Right.INGEST, Right.READ, Right.OPERATE

# Routes for data that are of no job: the first stores nothing, the second is about a machine.
WITHOUT_JOB = {"POST /api/v1/folders", "POST /api/v1/hosts/{host}/probes"}
THINGS = {
    "attempt": "1",
    "session": "1",
    "producer": "0",
    "n": "0",
    "group": "tp-0",
    "version": "1",
    "folder": "f" * 64,
}


def _token(company: Company, name: str, *jobs: str, rights: tuple[Right, ...] = (INGEST,)) -> str:
    return create_token(
        company.container, name=name, rights=rights, project="default", jobs=jobs, owner="tests"
    ).secret


def _announce(client: httpx.Client, job: str = "llm", run: str = "1") -> httpx.Response:
    return client.post(f"/api/v1/jobs/{job}/attempts", json={"run_id": run})


def _code(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["code"]


def _rows(company: Company, *tables: type[Any]) -> list[int]:
    with company.container.reading() as tx:
        return [
            tx.session.execute(select(func.count()).select_from(table)).scalar_one()
            for table in tables
        ]


STORED = (Job, Session, Intake, InboxItem, JobNote, AttemptOwner)
OWNED = 403, "attempt.owned"


def test_no_route_takes_data_of_a_job_from_a_token_for_other_jobs(company: Company) -> None:
    """The routes are those of the table of rights, so a new route is tested, too."""
    wrong = {}
    with company.client(_token(company, "own", "own-*", "other?")) as client:
        for key, need in NEEDS.items():
            if need is not INGEST or key in WITHOUT_JOB:
                continue
            method, _, path = key.partition(" ")
            for job in ("llm", "own", "other", "others-1", "Own-1"):
                address = (path + QUERIES.get(key, "")).format_map({**THINGS, "job": job})
                answer = client.request(method, address, json=BODIES.get(key))
                if _code(answer) != (403, "access.job_forbidden"):
                    wrong[key, job] = answer.status_code, answer.text[:200]
        assert wrong == {}
        refused = _announce(client)
        assert refused.json()["detail"] == (
            "The token own may send for the jobs other?, own-*, not for llm."
        )
        assert _rows(company, *STORED) == [0] * len(STORED)
        for number, job in enumerate(("own-", "own-llm", "others"), 1):
            assert _announce(client, job).status_code == 201
            assert _rows(company, Job) == [number]
    write_refusals(company.container)
    with company.container.reading() as tx:
        [entry] = [
            entry
            for entry in list_entries(tx, 100)
            if entry.subject == "POST /api/v1/jobs/{job}/attempts"
        ]
    assert (entry.actor, entry.detail, entry.count) == ("own", "access.job_forbidden", 6)


def test_every_route_that_receives_data_names_its_job() -> None:
    routes = {key for key, need in NEEDS.items() if need is INGEST}
    assert {key for key in routes if "{job}" not in key} == WITHOUT_JOB


@pytest.mark.parametrize(
    ("pattern", "job", "matches"),
    [
        ("llm", "llm", True),
        ("llm", "llm-2", False),
        ("*", "any thing", True),
        ("a*b?", "a--b1", True),
        ("a*b?", "a--b", False),
        ("llama[0-9]", "llama1", False),
        ("llama[0-9]", "llama[0-9]", True),
        ("a.c", "abc", False),
        ("*a" * 60, "a" * 199 + "b", False),
    ],
)
def test_patterns_have_two_signs(pattern: str, job: str, matches: bool) -> None:  # noqa: FBT001
    assert matches_job(pattern, job) is matches


def test_patterns_are_for_tokens_that_only_send(company: Company) -> None:
    def fault(*rights: Right, jobs: tuple[str, ...]) -> str | None:
        with pytest.raises(InvalidAccessError) as raised:
            _token(company, "x", *jobs, rights=rights)
        return raised.value.faults[0].column

    for rights in ((READ,), (OPERATE,), (OPERATE, INGEST)):
        assert fault(*rights, jobs=("llm",)) == "jobs"
    for jobs in (("",), ("a/b",), ("x" * 201,), tuple(map(str, range(33)))):
        assert fault(INGEST, jobs=jobs) == "jobs"
    secret = _token(company, "both", "b", "a", "b", rights=(INGEST, READ))
    with company.container.reading() as tx:
        [listed] = list_tokens(tx)
    assert listed.jobs == ("a", "b")
    with company.client(secret) as client:
        assert client.get("/api/v1/sessions").status_code == 200
        assert _announce(client).status_code == 403


def test_tokens_for_jobs_are_listed(company: Company) -> None:
    with company.client(company.token(Right.ADMIN, project=None)) as client:
        given = {"name": "for-llm", "scopes": ["ingest"], "project": "default", "jobs": ["llm-*"]}
        made = client.post("/api/v1/tokens", json=given)
        assert made.status_code == 201
        assert made.json()["token"]["jobs"] == ["llm-*"]
        jobs = {
            token["name"]: token["jobs"] for token in client.get("/api/v1/tokens").json()["tokens"]
        }
        assert jobs == {"admin-all": None, "for-llm": ["llm-*"]}
        assert "llm-*" in client.get("/access").text
        assert "llm-*" in client.get("/access/tokens.csv").text
        wrong = client.post("/api/v1/tokens", json=given | {"name": "x", "scopes": ["operate"]})
        assert (wrong.status_code, wrong.json()["faults"][0]["column"]) == (422, "jobs")


def _everything(client: httpx.Client) -> dict[str, httpx.Response]:
    """Send a body of every kind for the job `llm` and its attempt 1."""
    job, sizes = "/api/v1/jobs/llm", bodies.SIZES
    hanging = Hanging(2, [[(0, 1)], [(0, 1)]], host_stops={1: 1})
    batch = rank_body(3)
    head = b'{"chunks": [{"producer": "3", "n": 0, "final": true, "bytes": %d}]}\n' % len(batch)
    folder = f"{job}/folders/{'f' * 64}"
    pulse = next(iter(bodies_of_pulse(slow_job()[0])))
    return {
        "run": _announce(client),
        "chunk": client.put(url(1, "1", 0, "llm"), content=rank_body(1), params=sizes),
        "equal chunk": client.put(url(1, "0", 0, "llm"), content=rank_body(0), params=sizes),
        "other session": client.put(url(2, "0", 0, "llm"), content=rank_body(0), params=sizes),
        "batch": client.post(f"{of_session(1, 'llm')}/chunks", content=head + batch, params=sizes),
        "seal": client.post(f"{of_session(1, 'llm')}/seal"),
        "whole": client.post(f"{job}/sessions", content=bodies.parquet(), params=sizes),
        "file": client.put(
            f"{folder}/file", content=bodies.parquet(), params=sizes | {"name": "rank_0.parquet"}
        ),
        "sealed folder": client.post(f"{folder}/seal", json={}),
        "pulse": client.post(f"{job}/attempts/1/pulse", content=pulse),
        "hang": client.post(f"{job}/hangs", content=as_json(ras(hanging))),
        "hangs": client.post(f"{job}/hangs", content=archived({"ras.json": as_json(ras(hanging))})),
        "timings": TrainingJob(client, "llm", "tp-0").send(*SLOW),
        "end": client.post(f"{job}/finish"),
    }


def _opened(owner: httpx.Client) -> None:
    """Open attempt 1 of `llm` with a session in chunks."""
    assert _announce(owner).json()["attempt"] == 1
    sent = owner.put(url(1, "0", 0, "llm"), content=rank_body(0), params=bodies.SIZES)
    assert sent.status_code == 202


def test_a_token_that_owns_another_attempt_reports_no_times_of_this_one(company: Company) -> None:
    with (
        company.client(_token(company, "first", "llm")) as first,
        company.client(_token(company, "second", "*")) as second,
    ):
        training = TrainingJob(first, "llm", "tp-0")
        assert training.send(*SLOW).status_code == 202
        announced = second.post("/api/v1/jobs/llm/attempts", json={"run_id": "b", "restart": 0})
        assert announced.json()["attempt"] == 2
        assert _code(TrainingJob(second, "llm", "tp-0", step=2**50).send(*SLOW)) == OWNED
        assert training.send(*SLOW).status_code == 202


def test_the_first_token_of_an_attempt_owns_it(company: Company) -> None:
    with (
        company.client(_token(company, "first")) as first,
        company.client(_token(company, "second")) as second,
    ):
        _opened(first)
        before = _rows(company, *STORED)
        answers = _everything(second)
        codes = {name: _code(answer) for name, answer in answers.items() if name != "sealed folder"}
        assert set(codes.values()) == {OWNED}, codes
        assert answers["sealed folder"].status_code in {403, 404}
        assert "The token first sends" in answers["chunk"].json()["detail"]
        assert _rows(company, *STORED) == before
        with company.container.reading() as tx:
            refused = tx.session.execute(select(Intake.refused_chunks)).scalar_one()
        assert refused == 0
        wrong = {
            name: answer.text
            for name, answer in _everything(first).items()
            if answer.status_code not in {200, 201, 202, 204}
        }
        assert wrong == {}
    write_refusals(company.container)
    with company.container.reading() as tx:
        entries = [entry for entry in list_entries(tx, 100) if entry.action == "refused"]
    assert {(entry.actor, entry.subject, entry.detail) for entry in entries} == {
        ("second", "data of job llm", "attempt.owned")
    }


def test_the_first_pulse_of_an_attempt_owns_it(company: Company) -> None:
    """Pulses of different tokens arrive together: each is checked against its own token."""
    pulse = next(iter(bodies_of_pulse(slow_job()[0])))
    address = "/api/v1/jobs/llm/attempts/4/pulse"
    with (
        company.client(_token(company, "first")) as first,
        company.client(_token(company, "second")) as second,
    ):
        assert first.post(address, content=pulse).status_code == 202
        for _ in range(2):
            assert _code(second.post(address, content=pulse)) == OWNED
            assert first.post(address, content=pulse).status_code == 202
        # No later announcement of the job gets the number of an attempt of another token.
        assert _announce(second).json()["attempt"] == 5


def test_the_largest_number_of_an_attempt_blocks_no_announcement(company: Company) -> None:
    pulse = next(iter(bodies_of_pulse(slow_job()[0])))
    with (
        company.client(_token(company, "all")) as everything,
        company.client(_token(company, "own", "llm")) as own,
    ):
        assert _announce(own, run="1").json()["attempt"] == 1
        assert _announce(everything, "other").json()["attempt"] == 1
        for client, job in ((own, "llm"), (everything, "other")):
            address = f"/api/v1/jobs/{job}/attempts/{(1 << 31) - 1}/pulse"
            assert client.post(address, content=pulse).status_code == 202
            assert _announce(client, job, run="2").json()["attempt"] == 2


def test_operators_may_send_and_own_nothing_of_others(company: Company) -> None:
    create_person(company.container, "ada", "correct horse battery", Role.OPERATOR, "default")
    with (
        company.client(_token(company, "first")) as first,
        company.client(_token(company, "ops", rights=(INGEST, OPERATE))) as operator,
        company.client() as ada,
    ):
        _opened(first)
        form = {"name": "ada", "password": "correct horse battery", "next": "/"}
        assert ada.post("/sign-in", data=form).status_code == 303
        for producer, client in ((1, operator), (2, ada)):
            sent = client.put(
                url(1, str(producer), 0, "llm"),
                content=rank_body(producer),
                params=bodies.SIZES,
                headers={"Origin": company.url},
            )
            assert sent.status_code == 202, sent.text
        more = first.put(url(1, "3", 0, "llm"), content=rank_body(3), params=bodies.SIZES)
        assert more.status_code == 202


def test_a_renewed_token_keeps_its_attempts_and_a_revoked_one_loses_them(company: Company) -> None:
    def send(client: httpx.Client, producer: int) -> httpx.Response:
        content = rank_body(producer)
        return client.put(url(1, str(producer), 0, "llm"), content=content, params=bodies.SIZES)

    with (
        company.client(_token(company, "first")) as first,
        company.client(_token(company, "second")) as second,
    ):
        _opened(first)
        renew_token(company.container, "first", timedelta(days=1))
        assert send(first, 1).status_code == 202
        assert _code(send(second, 2)) == OWNED
        revoke_token(company.container, "first")
        assert send(first, 2).status_code == 401
        assert send(second, 2).status_code == 202
        assert second.post(f"{of_session(1, 'llm')}/seal").status_code == 202


def test_a_job_with_a_token_of_its_own_takes_no_attempt_of_a_token_for_all_jobs(
    company: Company,
) -> None:
    with (
        company.client(_token(company, "own", "llm")) as own,
        company.client(_token(company, "later", "llm")) as later,
        company.client(_token(company, "all")) as everything,
    ):
        _opened(own)
        refused = [
            _announce(everything, run="2"),
            everything.put(url(1, "0", 0, "llm", 2), content=rank_body(0), params=bodies.SIZES),
        ]
        assert [_code(answer) for answer in refused] == [OWNED, OWNED]
        assert _rows(company, Session, AttemptOwner) == [1, 1]
        # A second token for the job may open the next attempt, as when tokens are replaced.
        assert _announce(later, run="2").json()["attempt"] == 2
        assert _announce(everything, "another").status_code == 201


def test_a_token_for_the_job_takes_over_from_one_for_all_jobs(company: Company) -> None:
    """A token for all jobs cannot keep a job's own token out by sending first."""
    with (
        company.client(_token(company, "all")) as everything,
        company.client(_token(company, "own", "llm")) as own,
    ):
        _opened(everything)
        wrong = {
            name: answer.text
            for name, answer in _everything(own).items()
            if answer.status_code not in {200, 201, 202, 204}
        }
        assert wrong == {}
        late = everything.put(url(2, "1", 0, "llm"), content=rank_body(1), params=bodies.SIZES)
        assert _code(late) == OWNED


def test_what_an_operator_opened_is_of_the_first_token(company: Company) -> None:
    with (
        company.client(_token(company, "ops", rights=(INGEST, OPERATE))) as operator,
        company.client(_token(company, "first")) as first,
        company.client(_token(company, "second")) as second,
    ):
        _opened(operator)
        assert _rows(company, AttemptOwner) == [0]
        for client, status in ((first, 202), (second, 403), (operator, 200)):
            sent = client.put(url(1, "1", 0, "llm"), content=rank_body(1), params=bodies.SIZES)
            assert sent.status_code == status


def test_a_moved_job_may_be_sent_by_a_token_of_its_new_project(company: Company) -> None:
    theirs = company.token(INGEST, project="other")
    with company.client(_token(company, "first")) as first, company.client(theirs) as client:
        _opened(first)
        move_job(company.ours, "llm", "other")
        sent = client.put(url(1, "1", 0, "llm"), content=rank_body(1), params=bodies.SIZES)
        assert sent.status_code == 202


def _healthy(seed: int) -> bytes:
    job = JobModel(Sizes(dp=2, pp=2), microbatches=4, steps=12)
    return to_parquet(synthesize(job, seed=seed).trace)


def test_healthy_sessions_of_another_token_do_not_resolve_an_incident(company: Company) -> None:
    alerting = Alerting(company.ours)

    def send(client: httpx.Client, attempt: int, seed: int) -> list[httpx.Response]:
        """Send a healthy session in one body, and one in a chunk with its seal."""
        sizes = {"dp": 2, "pp": 2, "world": 4}
        whole = client.post("/api/v1/jobs/llm/sessions", content=_healthy(seed), params=sizes)
        chunk = client.put(
            url(seed, "all", 0, "llm", attempt),
            content=_healthy(seed + 100),
            params=sizes | {"final": True},
        )
        return [whole, chunk, client.post(f"{of_session(seed, 'llm', attempt)}/seal")]

    with (
        company.client(_token(company, "a", "llm")) as owner,
        company.client(_token(company, "b", "other-job")) as other,
        company.client(_token(company, "all")) as everything,
    ):
        assert _announce(owner).json()["attempt"] == 1
        alerting.slow("llm")
        assert alerting.incident().state is IncidentState.FIRING
        for seed in (100, 200, 300):
            for attempt in (1, 2):
                for client in (other, everything):
                    answers = send(client, attempt, seed)
                    allowed = {403} if client is other else {403, 404}
                    assert {answer.status_code for answer in answers} <= allowed
        alerting.work()
        assert alerting.incident().state is IncidentState.FIRING
        # The same sessions of the job's own token resolve it.
        for seed in (100, 200, 300):
            assert [answer.status_code for answer in send(owner, 1, seed)] == [202, 202, 200]
        alerting.work()
        assert alerting.incident().state is IncidentState.RESOLVED
