"""A token of one project reads and changes nothing of another one, by any route.

The routes are those of the application, so a new route is tested without a change here.
"""

from __future__ import annotations

import re
import uuid
from datetime import timedelta
from itertools import islice
from typing import TYPE_CHECKING

import pytest
from fastapi.routing import APIRoute, iter_route_contexts

from app.access.rights import NEEDS, Open
from app.fixes.applied import apply_fix
from app.hangs.receive import MOST_AT_ONCE_BYTES
from app.incidents.channel_writes import create_channel
from app.incidents.models.rules import Rule
from app.incidents.models.tables import AlertDelivery, AlertGroup
from app.incidents.store import load_rules
from app.jobs.saved_views import save_view
from app.jobs.time_axis import write_note
from app.platform.database.unit_of_work import UnitOfWork
from app.platform.identity import Right
from app.platform.tasks.execute import execute
from app.platform.tasks.runs import LeaseKeeper
from app.pulse.advance import advance_pulses
from app.run.application import create_app
from tests.integration.api import bodies
from tests.integration.api.chunks import rank_body
from tests.integration.api.pulse.sending import bodies as bodies_of_pulse
from tests.integration.api.pulse.sending import slow_job
from tests.integration.hosts.build import probe_of
from tests.support import plans
from tests.support.acting import machine_action
from tests.support.alerting import Alerting
from tests.support.hanging import Hanging, archived, as_json, ras
from tests.support.sessions import small_trace, store
from tests.support.tensor import SLOW, TrainingJob

if TYPE_CHECKING:
    from collections.abc import Mapping

    import httpx

    from tests.integration.access.conftest import Company

SECRET = "secret-job"  # noqa: S105 - a name

# Bodies that are valid for objects of the own project, so that a refusal is not due to the body.
BODIES: dict[str, object] = {
    "POST /api/v1/sessions/{session}/what-if": {
        "base": "recorded",
        "changes": [{"select": {"steps": [1]}, "duration": "ideal"}],
    },
    "POST /api/v1/sessions/{session}/fixes": {"action": "replace_worker"},
    "PUT /api/v1/alert-rules/{rule}": {
        "name": "Mine",
        "condition": {"kind": "slowdown", "at_least": 1.2, "clears_below": 1.1},
    },
    "PATCH /api/v1/channels/{channel}": {"name": "mine"},
    "POST /api/v1/incidents/{incident}/ack": {},
    "POST /api/v1/incidents/{incident}/silence": {
        "reason": "x",
        "until": "2100-01-01T00:00:00Z",
    },
    "POST /api/v1/incidents/{incident}/resolve": {},
    "POST /api/v1/incidents/{incident}/reopen": {},
    "POST /api/v1/incidents/{incident}/comments": {"words": "mine"},
    "PUT /api/v1/incidents/{incident}/assignee": {"to": "me"},
    "POST /api/v1/hosts/{host}/repairs": {"what": "replaced GPU 5"},
    "POST /api/v1/jobs/{job}/tp/{group}/plan/{version}/ack": {
        "attempt": 0,
        "ranks": [0],
        "applied": True,
        "step": 1,
    },
    "PUT /api/v1/jobs/{job}/tp/mode": {"mode": "advise"},
    "POST /api/v1/jobs/{job}/folders/{folder}/seal": {},
    "POST /api/v1/jobs/{job}/notes": {"text": "mine"},
    "POST /api/v1/jobs/{job}/recordings": {},
    "PATCH /api/v1/views/{view}": {"name": "mine"},
    "PATCH /api/v1/jobs/{job}": {"name": "mine", "archived": True},
}
QUERIES: dict[str, str] = {
    "GET /api/v1/sessions/{session}/timeline": "?step=1",
    "GET /compare": "?a={session}&b={session}",
    "GET /compare/times": "?job={job}",
    "GET /compare/times/{name}.csv": "?job={job}",
    "GET /compare/{name}.csv": "?a={session}&b={session}",
    "GET /plans": "?of={plan}",
    "GET /api/v1/jobs/{job}/tp/{group}/plan": "?attempt=0&wait_s=0",
}
# Routes that create a job, or a host's entry, in the own project if it does not exist there.
HANGING = Hanging(2, [[(0, 1)], [(0, 1)]], host_stops={1: 1})
MAKING = {
    "POST /api/v1/jobs/{job}/sessions",
    "PUT /api/v1/jobs/{job}/folders/{folder}/file",
    # This route answers that no file has arrived, for a foreign job as for an unknown one.
    "GET /api/v1/jobs/{job}/folders/{folder}",
    "POST /api/v1/jobs/{job}/attempts",
    "POST /api/v1/jobs/{job}/hangs",
    "POST /api/v1/jobs/{job}/attempts/{attempt}/pulse",
    "POST /api/v1/jobs/{job}/tp/{group}/timings",
    "POST /api/v1/hosts/{host}/probes",
    "PUT /api/v1/jobs/{job}/attempts/{attempt}/sessions/{session}/chunks/{producer}/{n}",
    "POST /api/v1/jobs/{job}/attempts/{attempt}/sessions/{session}/chunks",
}
# An existing file for each beginning of an address.
FILES: dict[str, str] = {
    **dict.fromkeys(("report/", "fleet/", "ingest/"), "jobs"),
    "sessions/": "workers",
    "incidents/": "deliveries",
    "hosts/": "sessions",
    "hangs/": "ranks",
    "jobs/{job}/pulse/": "minutes",
    "compare/times/": "causes",
    "compare/": "steps",
    "jobs/{job}/tensor/": "times.csv",
}


@pytest.fixture
def theirs(company: Company) -> Mapping[str, str]:
    """Return the values of address parameters for objects of the other project."""
    alerting = Alerting(company.theirs)
    channel = create_channel(
        company.theirs,
        name="their-channel",
        kind="webhook",
        config={"url": "https://hooks.example/x"},
        enabled=False,
    )
    stored = store(company.theirs, small_trace(), job=SECRET)
    keeper = LeaseKeeper(company.container)
    assert execute(company.container, keeper, stored.run)
    apply_fix(company.theirs, stored.session, "replace_worker")
    note = write_note(company.theirs, SECRET, words="their note")
    view = save_view(company.theirs, "their view", "q=secret")
    plan = plans.ask(company.theirs, plans.small_spec())
    assert execute(company.container, keeper, plan.run)
    alerting.slow(SECRET)
    with company.client(company.token(Right.INGEST, project="other")) as client:
        group = TrainingJob(client, SECRET, "tp-0")
        for _ in range(3):
            assert group.send(*SLOW).status_code == 202
        hang = client.post(f"/api/v1/jobs/{SECRET}/hangs", content=as_json(ras(HANGING)))
        large = archived({"notes": b" " * (MOST_AT_ONCE_BYTES + 1)})
        kept = client.post(f"/api/v1/jobs/{SECRET}/hangs", content=large)
        for run in ("first", "second", "third"):
            _announce(client, run)
        host = next(iter(small_trace().meta.hosts.values()))
        assert client.post(f"/api/v1/hosts/{host}/probes", json=probe_of(1.0)).status_code == 201
    delivery = uuid.uuid4()
    with company.theirs.uow() as tx:
        rule: Rule = load_rules(tx)[0]
        _deliver(tx, delivery, channel.id)
        action = machine_action(alerting.incidents()[0].id, "node-7", tx.now)
        tx.session.add(action)
        machine = str(action.id)
    return {
        "machine_action": machine,
        "session": str(stored.session),
        "other": str(stored.session),
        "job": SECRET,
        "plan": str(plan.plan),
        "rule": str(rule.id),
        "channel": str(channel.id),
        "incident": str(alerting.incidents()[0].id),
        "delivery": str(delivery),
        "host": host,
        "attempt": "1",
        "producer": "rank-0",
        "n": "0",
        "name": "template.csv",
        "group": "tp-0",
        "version": "1",
        "action": "replace_worker",
        "hang": hang.json()["hang"],
        "upload": kept.json()["upload"],
        "note": str(note.id),
        "view": str(view.id),
    }


def _announce(client: httpx.Client, run: str) -> int:
    body = {"run_id": run, "restart": 0}
    number: int = client.post(f"/api/v1/jobs/{SECRET}/attempts", json=body).json()["attempt"]
    return number


def _deliver(tx: UnitOfWork, delivery: uuid.UUID, channel: uuid.UUID) -> None:
    group = tx.session.query(AlertGroup.id).first()
    assert group is not None
    tx.session.add(
        AlertDelivery(
            id=delivery,
            group_id=group.id,
            channel_id=channel,
            number=99,
            generation=0,
            state="failed",
            attempt=1,
            next_attempt_at=tx.now,
        )
    )


def _routes(company: Company) -> list[str]:
    app = create_app(company.container)
    found = {
        f"{method} {context.path}"
        for context in iter_route_contexts(app.routes)
        for method in context.methods or ()
    }
    return sorted(key for key in found if isinstance(NEEDS.get(key), Right))


def _ask(client: httpx.Client, key: str, things: Mapping[str, str]) -> httpx.Response:
    method, _, path = key.partition(" ")
    if key.endswith("/seal"):
        things = {**things, "session": "1", "folder": "f" * 64}
    address = (path + QUERIES.get(key, "")).format_map(things)
    return client.request(method, address, json=BODIES.get(key))


def test_every_route_of_a_thing_answers_a_foreign_token_as_if_it_were_not_there(
    company: Company, theirs: Mapping[str, str]
) -> None:
    wrong = {}
    with company.client(company.token(Right.OPERATE, Right.INGEST)) as client:
        for key in _routes(company):
            if "{" not in key + QUERIES.get(key, "") or key in MAKING:
                continue
            answer = _ask(client, key, theirs)
            if answer.status_code != 404:
                wrong[key] = answer.status_code, answer.text[:200]
    assert wrong == {}


def test_the_same_routes_answer_a_token_of_the_project(
    company: Company, theirs: Mapping[str, str]
) -> None:
    """Without this test, wrong addresses would make everything seem hidden."""
    missing = {}
    with company.client(company.token(Right.OPERATE, Right.INGEST, project="other")) as client:
        for body in islice(bodies_of_pulse(slow_job()[0]), 4):
            sent = client.post(f"/api/v1/jobs/{SECRET}/attempts/1/pulse", content=body)
            assert sent.status_code == 202
        assert advance_pulses(company.container, timedelta(0))
        for key in _routes(company):
            if "{" not in key + QUERIES.get(key, "") or key in MAKING:
                continue
            if not key.startswith("GET") or key.endswith("/events"):
                continue
            named = (file for begin, file in FILES.items() if key.startswith(f"GET /{begin}"))
            things = {**theirs, "name": next(named, theirs["name"])}
            answer = _ask(client, key.replace("?step=1", "?step=2"), things)
            if answer.status_code == 404 and not key.endswith(("/timeline", "/plan")):
                missing[key] = answer.text[:200]
    assert missing == {}


def test_no_route_answers_a_request_that_names_two_projects(
    company: Company, theirs: Mapping[str, str]
) -> None:
    wrong = {}
    things = {**theirs, "person": str(uuid.uuid4()), "path": "x", "of": "x", "file": "x"}
    with company.client(company.token(Right.ADMIN, project=None)) as client:
        for key in NEEDS:
            method, _, path = key.partition(" ")
            # The path names the other project, and the header that of the token.
            answer = client.request(
                method,
                "/p/other" + re.sub(r"{(\w+)[^}]*}", lambda at: things.get(at[1], "x"), path),
                headers={"Paceline-Project": "default"},
            )
            if (answer.status_code, answer.json()["code"]) != (400, "project.ambiguous"):
                wrong[key] = answer.status_code, answer.text[:200]
        twice = [("Paceline-Project", "default"), ("Paceline-Project", "other")]
        assert client.get("/api/v1/jobs", headers=twice).json()["code"] == "project.ambiguous"
        same = {"Paceline-Project": "other"}
        assert client.get("/p/other/api/v1/jobs", headers=same).status_code == 200
    assert wrong == {}


def test_sending_to_a_foreign_job_s_name_makes_a_job_in_the_own_project(
    company: Company, theirs: Mapping[str, str]
) -> None:
    """The new job has the foreign job's name, and none of its attempts, groups and sessions."""
    chunk = "/api/v1/jobs/{job}/attempts/1/sessions/1/chunks/{producer}/0".format_map(theirs)
    with company.client(company.token(Right.OPERATE, Right.INGEST)) as client:
        # The foreign job has three attempts.
        assert _announce(client, "third") == 1
        # The foreign job is at step 3.
        assert TrainingJob(client, SECRET, "tp-0").send(*SLOW).json()["plan_version"] is None
        sent = client.put(chunk, content=rank_body(0), params=bodies.SIZES)
        assert sent.status_code == 202
        whole = client.post(
            f"/api/v1/jobs/{SECRET}/sessions", content=bodies.parquet(), params=bodies.SIZES
        )
        assert whole.status_code == 202
        ours = {session["id"] for session in client.get("/api/v1/sessions").json()["sessions"]}
    with company.client(company.token(Right.READ, project="other")) as client:
        others = {session["id"] for session in client.get("/api/v1/sessions").json()["sessions"]}
    assert whole.json()["session"] in ours
    assert theirs["session"] in others
    assert not ours & others


def test_requests_about_the_installation_need_an_administrator(
    company: Company, theirs: Mapping[str, str]
) -> None:
    """A token of a project is refused, with any rights, and for known and unknown objects."""
    wrong = {}
    rights = (Right.OPERATE, Right.INGEST, Right.READ)
    things = {**theirs, "person": str(uuid.uuid4())}
    with company.client(company.token(*rights, project="other")) as client:
        for key, need in NEEDS.items():
            if need is Open.INSTALLATION:
                answer = _ask(client, key, things)
                if answer.status_code != 403:
                    wrong[key] = answer.status_code, answer.text[:200]
    assert wrong == {}


def test_a_stream_of_events_tells_nothing_of_another_project(company: Company) -> None:
    with (
        company.client(company.token(Right.READ, Right.INGEST)) as ours,
        company.client(company.token(Right.INGEST, project="other")) as theirs,
        ours.stream("GET", "/api/v1/events") as stream,
    ):
        assert stream.status_code == 200
        address = "/api/v1/jobs/{}/sessions"
        sent = [
            client.post(address.format(job), content=bodies.parquet(), params=bodies.SIZES)
            for client, job in ((theirs, SECRET), (ours, "own"))
        ]
        # The foreign session arrived first, but the first event of the stream is about the own
        # session.
        told = next(line for line in stream.iter_lines() if line.startswith("data:"))
        assert sent[1].json()["session"] in told
        assert sent[0].json()["session"] not in told


def test_every_route_is_walked(company: Company) -> None:
    """Every route is in the table of required rights, and in one of the walks above."""
    app = create_app(company.container)
    found = {
        f"{method} {context.path}"
        for context in iter_route_contexts(app.routes)
        for method in context.methods or ()
        if method != "HEAD"
    }
    unknown = found - set(NEEDS)
    assert {key for key in unknown if "openapi.json" not in key} == set()
    # Routes of a sign-in provider exist only where one is configured.
    assert {key for key in set(NEEDS) - found if "/sign-in/provider" not in key} == set()
    assert found >= MAKING


def test_no_list_and_no_page_holds_a_name_or_an_id_of_another_project(
    company: Company, theirs: Mapping[str, str]
) -> None:
    hidden = [SECRET, "their-channel", "their view", "node-7"]
    hidden += [theirs[name] for name in ("session", "plan", "channel", "incident", "delivery")]
    told = {}
    with company.client(company.token(Right.READ)) as client:
        for key in _routes(company):
            if not key.startswith("GET") or "{" in key or key.endswith("/events"):
                continue
            answer = client.get(key.partition(" ")[2])
            assert answer.status_code in {200, 403}, key
            found = [name for name in hidden if name in answer.text]
            if found:
                told[key] = found
    assert told == {}


def test_a_search_for_a_name_of_another_project_finds_nothing(
    company: Company, theirs: Mapping[str, str]
) -> None:
    """Every query parameter of every list, with a foreign value and an unknown one."""
    known = {
        "job": ("job", "nobodys-job"),
        "channel": ("channel", str(uuid.uuid4())),
        "of": ("plan", str(uuid.uuid4())),
        "session": ("session", str(uuid.uuid4())),
    }
    asked = 0
    with company.client(company.token(Right.READ)) as client:
        for path, name in _searched(company):
            thing, nobodys = known.get(name, ("job", "nobodys-job"))
            said = [_said(client, path, name, value) for value in (theirs[thing], nobodys)]
            assert said[0] == said[1], (path, name)
            asked += 1
    assert asked > 10


def _said(client: httpx.Client, path: str, name: str, value: str) -> tuple[int, str]:
    """Return the answer of a search without the searched value and the time of the answer."""
    answer = client.get(path, params={name: value})
    text = re.sub(r"\d{4}-\d\d-\d\d[T ][\d:.]+", "then", answer.text)
    return answer.status_code, text.replace(value, "it")


def _searched(company: Company) -> list[tuple[str, str]]:
    """Return the query parameters of all lists whose address has no other parameter."""
    return sorted(
        {
            (context.path or "", parameter.alias)
            for context in iter_route_contexts(create_app(company.container).routes)
            if isinstance(context.original_route, APIRoute)
            and "{" not in (context.path or "")
            and "GET" in (context.methods or ())
            and isinstance(NEEDS.get(f"GET {context.path}"), Right)
            for parameter in context.original_route.dependant.query_params
        }
    )


def test_words_and_orders_reach_nothing_of_another_project(
    company: Company, theirs: Mapping[str, str]
) -> None:
    with company.client(company.token(Right.OPERATE)) as client:
        for words in (SECRET, "node-7", "slow worker", theirs["session"], "1"):
            answer = client.get("/api/v1/search", params={"q": words})
            assert answer.json() == {"found": []}, words
        for order in ({"order": "acknowledge"}, {"order": "assign", "to": "me"}):
            body = order | {"incidents": [theirs["incident"]]}
            assert client.post("/api/v1/incidents/orders", json=body).status_code == 404


def test_names_of_another_project_are_free(company: Company, theirs: Mapping[str, str]) -> None:
    assert theirs
    with company.client(company.token(Right.OPERATE)) as client:
        channel = {
            "name": "their-channel",
            "kind": "webhook",
            "config": {"url": "https://x.example"},
        }
        assert client.post("/api/v1/channels", json=channel).status_code == 201
        asked = client.post("/api/v1/plans", json={"spec": plans.small_spec()})
        # The same request in the other project has made another plan.
        assert asked.status_code == 202
        assert asked.json()["plan"] != theirs["plan"]


def test_metrics_name_projects_and_nothing_of_theirs(
    company: Company, theirs: Mapping[str, str]
) -> None:
    with company.client("metrics-of-this-test") as client:
        text = client.get("/metrics").text
    assert "paceline_sessions" in text
    assert not [
        value for value in (SECRET, "their-channel", theirs["session"]) if re.search(value, text)
    ]
