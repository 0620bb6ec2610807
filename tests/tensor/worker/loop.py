"""The controller on four ranks, with a service whose answers a check sets."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

import torch
import torch.distributed as dist

from paceline_client.tensor import (
    Consent,
    Controller,
    Costs,
    CpuWatch,
    Peer,
    TensorGroup,
    Workload,
)
from paceline_client.tensor.watch import StepTime
from tests.tensor.worker.training import new_block, new_training, train

_COLUMNS: Final = 16
# A limit for hangs: far longer than an answer takes.
_PATIENCE_S: Final = 30.0


def plan_of(version: int, expires_step: int, **other: Any) -> dict[str, Any]:  # noqa: ANN401
    """Return a plan's document: rank 2 leaves 4 of 16 columns out and lends 6 to rank 3."""
    ranks: list[dict[str, Any]] = [
        {"rank": rank, "gamma": 0.0, "resized_columns": 0, "migrated_columns": 0, "to": {}}
        for rank in range(4)
    ]
    ranks[2] |= {"gamma": 0.25, "resized_columns": 4, "migrated_columns": 6, "to": {"3": 6}}
    return {
        "schema": "paceline.tensor-plan/1",
        "version": version,
        "attempt": 1,
        "group": "0-2",
        "world_size": 4,
        "columns": _COLUMNS,
        "unit": 1,
        "method": "semi",
        "apply": True,
        "expires_step": expires_step,
        "ranks": ranks,
    } | other


@dataclass
class Answers:
    """The answers of the service, and the requests that it got."""

    plan: dict[str, Any] | None = None
    timings: list[dict[str, Any]] = field(default_factory=list)
    acknowledged: list[dict[str, Any]] = field(default_factory=list)

    def of(self, method: str, path: str, body: dict[str, Any] | None) -> tuple[int, Any]:
        """Return status and document of the answer to a request."""
        parts = urlsplit(path)
        if path.endswith("/timings") and body is not None:
            self.timings.append(body)
            plan = self.plan
            return 202, {
                "plan_version": plan["version"] if plan else None,
                "expires_step": plan["expires_step"] if plan else None,
                "apply": True,
            }
        if path.endswith("/ack") and body is not None:
            self.acknowledged.append({"version": int(path.split("/")[-2]), **body})
            return 204, None
        after = int(parse_qs(parts.query)["after"][0])
        assert (method, parts.path.rsplit("/", 1)[-1]) == ("GET", "plan")
        newer = self.plan is not None and self.plan["version"] > after
        return (200, self.plan) if newer else (204, None)


@contextmanager
def _service(answers: Answers) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _answer(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            status, document = answers.of(self.command, self.path, body)
            content = b"" if document is None else json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = _answer  # noqa: N815 - names of the library

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _LateWatch(CpuWatch):
    """A watch that returns the times of a step two steps later, like a device that is behind."""

    def __init__(self) -> None:
        super().__init__()
        self._held: list[StepTime] = []

    def finished(self) -> list[StepTime]:
        """Return the steps that are two steps old."""
        self._held += super().finished()
        ended, self._held = self._held[:-2], self._held[-2:]
        return ended


class _Job:
    """A small training with a controller."""

    def __init__(
        self, url: str, consent: Consent, watch: CpuWatch | None = None, steps_before: int = 0
    ) -> None:
        self.tp = TensorGroup(watch=watch or CpuWatch())
        self.training = new_training(new_block(self.tp))
        self.workload = Workload(self.training.model, self.tp, self.training.optimizer)
        peer = Peer(url, "llama", "0-2", 1)
        costs = Costs(((4, 0.001, 1), (8, 0.002, 1)), ((4, 0.0005),))
        train(self.training, steps_before)
        self.controller = Controller(self.workload, self.tp, peer, consent, costs=costs)
        self.versions: list[int] = []

    def step(self) -> None:
        """Train for a step."""
        plan = self.controller.plan
        self.versions.append(plan.version if plan is not None else 0)
        train(self.training, 1)
        self.controller.step()

    def until(self, reached: Any) -> None:  # noqa: ANN401 - called on the first rank only
        """Train until a condition holds on the first rank, the same number of steps on all."""
        deadline_s = time.monotonic() + _PATIENCE_S
        over = torch.zeros(1)
        while not over.item():
            if time.monotonic() > deadline_s:
                raise AssertionError("what was waited for did not come")
            self.step()
            over[0] = float(self.tp.rank == 0 and bool(reached()))
            dist.broadcast(over, 0)


def _url_for_all(url: str) -> str:
    """Return the first rank's address of the service on every rank."""
    urls: list[Any] = [url]
    dist.broadcast_object_list(urls, 0)
    return str(urls[0])


@contextmanager
def _job(
    answers: Answers, consent: Consent, watch: CpuWatch | None = None, steps_before: int = 0
) -> Iterator[_Job]:
    if dist.get_rank() == 0:
        with _service(answers) as url:
            job = _Job(_url_for_all(url), consent, watch, steps_before)
            yield job
            job.controller.close()
    else:
        job = _Job(_url_for_all(""), consent, watch, steps_before)
        yield job
        job.controller.close()


def one_boundary() -> dict[str, Any]:
    """Return the steps on which a plan is in force that arrives, is renewed, and is withdrawn."""
    answers = Answers()
    with _job(answers, Consent(apply=True, max_gamma=0.25)) as job:
        job.until(lambda: len(answers.timings) > 1)
        answers.plan = plan_of(3, expires_step=1_000_000)
        job.until(lambda: any(one["version"] == 3 for one in answers.acknowledged))
        for _ in range(3):
            job.step()
        none = [{"rank": rank, "resized_columns": 0, "to": {}} for rank in range(4)]
        answers.plan = plan_of(4, expires_step=1_000_000, method="none", ranks=none)
        job.until(lambda: any(one["version"] == 4 for one in answers.acknowledged))
        job.step()
        reported = [one["step"] for one in answers.timings]
        return {
            "versions": job.versions,
            "acknowledged": answers.acknowledged,
            "timings": answers.timings[:1] + answers.timings[-1:],
            "in_order": reported == sorted(set(reported)),
            "planned": {one["step"]: one["plan_version"] for one in answers.timings},
        }


def refusals() -> dict[str, Any]:
    """Return the refusals of plans that the job's code, the group or its size do not allow."""
    answers = Answers()
    with _job(answers, Consent(apply=True, max_gamma=0.2)) as job:
        for version, other in (
            (1, {}),
            (2, {"world_size": 8}),
            (3, {"attempt": 2}),
            (4, {"ranks": [{"rank": 7, "resized_columns": 1, "to": {}}]}),
            (5, {"ranks": [{"rank": 1, "resized_columns": 3, "to": {"0": 14}}]}),
            (6, {"method": "best"}),
            (7, {"ranks": [{"rank": 1, "resized_columns": "3", "to": {}}]}),
        ):
            answers.plan = plan_of(version, 1_000_000, **other)
            job.until(lambda at=version: any(one["version"] == at for one in answers.acknowledged))
        refused = list(answers.acknowledged)
    answers = Answers(plan_of(9, 1_000_000))
    with _job(answers, Consent(apply=False)) as advised:
        advised.until(lambda: answers.acknowledged)
        return {
            "refused": [(one["version"], one["applied"], one["reason"]) for one in refused],
            "not_allowed": [(one["applied"], one["reason"]) for one in answers.acknowledged],
            "versions": job.versions + advised.versions,
        }


def dead_service() -> dict[str, Any]:
    """Train while the service disappears with a plan in force, and without a service at all."""
    answers = Answers(plan_of(1, expires_step=40))
    with _job(answers, Consent(apply=True)) as job:
        job.until(lambda: answers.acknowledged)
        # The plan is not renewed any more, as if the service was unavailable.
        answers.of = lambda *_: (503, {"code": "unavailable", "detail": "later"})  # type: ignore[method-assign]
        while len(job.versions) < 45:
            job.step()
        versions = job.versions
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        lonely = _Job(_url_for_all(url), Consent(apply=True))
        for _ in range(30):
            lonely.step()
        lonely.controller.close()
    return {
        "versions": versions,
        "lonely": lonely.versions,
        "losses": [float(loss) for loss in lonely.training.losses],
        "reports_dropped": lonely.controller.reports_dropped,
    }


def switched_off() -> dict[str, Any]:
    """Train while the service is switched to advice only, with a plan in force."""
    answers = Answers(plan_of(1, 1_000_000))
    with _job(answers, Consent(apply=True)) as job:
        job.until(lambda: answers.acknowledged)
        job.step()
        answers.plan = plan_of(2, 1_000_000, apply=False)
        job.until(lambda: job.controller.plan is None)
        job.step()
        return {
            "versions": job.versions,
            "acknowledged": [a["version"] for a in answers.acknowledged],
        }


def posted() -> dict[str, Any]:
    """Return the sizes of layers, and the ranks' shares under a plan, in reports."""
    answers = Answers()
    with _job(answers, Consent(apply=True), _LateWatch(), steps_before=5) as job:
        job.until(lambda: len(answers.timings) > 1)
        answers.plan = plan_of(1, 1_000_000)
        job.until(lambda: any(one["plan_version"] == 1 for one in answers.timings))
        return {
            "sizes": [one["sizes"] for one in answers.timings if "sizes" in one],
            "without_a_plan": [o["computed"] for o in answers.timings if not o["plan_version"]],
            "computed": [o["computed"] for o in answers.timings if o["plan_version"]],
            "share": job.workload.share,
        }
