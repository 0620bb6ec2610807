"""A machine keeps its identity when its job restarts with other ranks and pod names."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Final

import pytest
from sqlalchemy import select

from app.analysis.synthesis.injections.computations import SlowWorker
from app.analysis.synthesis.job import JobModel
from app.analysis.synthesis.synthesize import synthesize
from app.analysis.trace.metadata import metadata_document, parse_metadata
from app.analysis.trace.model import Sizes, Trace
from app.hosts.models import GpuPlace, HostReading
from app.incidents.models.tables import AlertIncident
from app.platform.tasks.runs import claim
from app.sessions.analyze import analyze_session
from app.sessions.read import report_document
from tests.support.nightly import every_night
from tests.support.reads import read
from tests.support.sessions import Stored, store

if TYPE_CHECKING:
    import httpx

    from app.platform.container import Container

SIZES: Final = Sizes(dp=4, pp=2)
# Four nodes of two GPUs.
HOME: Final = {f"GPU-{n:08x}-0000-4000-8000-000000000000": f"node-{n // 2}" for n in range(8)}
SLOW: Final = list(HOME)[5]


@cache
def slow_at(dp: int, pp: int) -> Trace:
    job = JobModel(SIZES, microbatches=4, steps=8)
    return synthesize(job, [SlowWorker((dp, pp), 1.8)], seed=1).trace


@cache
def cell_of_rank() -> dict[int, tuple[int, int]]:
    trace = slow_at(0, 0)
    cells = zip(trace.rank.tolist(), trace.dp.tolist(), trace.pp.tolist(), strict=True)
    return {rank: (dp, pp) for rank, dp, pp in cells}


@dataclass
class Cluster:
    """A job that restarts: the scheduler assigns its ranks to nodes at random."""

    container: Container
    home: dict[str, str]  # node of each GPU
    named: bool  # whether pods are told the names of their nodes
    starts: int = 0

    def __post_init__(self) -> None:
        self.chance = random.Random(7)  # noqa: S311 - of a test

    def restart(self) -> Stored:
        """Run the job for a session, and analyze that session."""
        self.starts += 1
        ranks = sorted(cell_of_rank())
        gpus = dict(zip(ranks, self.chance.sample(sorted(self.home), len(ranks)), strict=True))
        pods = {node: f"llama-{self.starts}-{n}" for n, node in enumerate(set(self.home.values()))}
        nodes = {rank: self.home[gpu] for rank, gpu in gpus.items()}
        hosts = {rank: node if self.named else pods[node] for rank, node in nodes.items()}
        slow = next(rank for rank, gpu in gpus.items() if gpu == SLOW)
        trace = slow_at(*cell_of_rank()[slow])
        said = metadata_document(trace.meta) | {
            "hosts": hosts,
            "guessed_hosts": {} if self.named else dict.fromkeys(pods.values(), "hostname"),
            "pods": {rank: f"ml/{pods[node]}" for rank, node in nodes.items()},
            "gpus": {rank: self.chance.randrange(2) for rank in ranks},
            "gpu_uuids": gpus,
        }
        stored = store(self.container, replace(trace, meta=parse_metadata(said)))
        held = claim(self.container, stored.run)
        assert held is not None
        analyze_session(self.container, held)
        return stored

    def blamed(self) -> list[HostReading]:
        with self.container.reading() as tx:
            query = select(HostReading).where(HostReading.cause.is_not(None))
            return list(tx.session.execute(query.order_by(HostReading.received_at)).scalars())

    def incidents(self) -> list[AlertIncident]:
        with self.container.reading() as tx:
            query = select(AlertIncident).where(AlertIncident.fired_at.is_not(None))
            return list(tx.session.execute(query.order_by(AlertIncident.opened_at)).scalars())


@pytest.mark.parametrize(
    ("restarts", "named"),
    [(6, True), *every_night((100, False), (100, True))],
    ids=["few", *every_night("guess", "node")],
)
def test_after_restarts_every_blame_meets_the_same_machine(
    container: Container, client: httpx.Client, restarts: int, *, named: bool
) -> None:
    cluster = Cluster(container, dict(HOME), named=named)
    for _ in range(restarts):
        cluster.restart()

    blamed = cluster.blamed()
    assert len(blamed) == restarts
    [host] = {reading.host for reading in blamed}
    assert host == HOME[SLOW] if named else host.startswith("llama-1-")
    assert {reading.guessed for reading in blamed} == {not named}
    # The same GPU, although its number differs.
    slow = [gpu for reading in blamed for gpu in reading.gpus if gpu["slow"]]
    assert {gpu["uuid"] for gpu in slow} == {SLOW}
    assert len({gpu["gpu"] for gpu in slow}) == 2
    [incident] = cluster.incidents()
    assert incident.document["where"] == host
    with container.reading() as tx:
        places = list(tx.session.execute(select(GpuPlace)).scalars())
    assert sorted(place.gpu for place in places) == sorted(HOME)
    assert len({place.host for place in places}) == 4

    evidence = client.get(f"/incidents/{incident.id}/evidence").text
    assert ("kubectl cordon" in evidence, f"{host} (guessed)" in evidence) == (named, not named)
    for path in ("/hosts", f"/hosts/{host}", f"/incidents/{incident.id}", "/report"):
        page = client.get(path).text
        assert host in page
        assert ("guessed" in page) == (not named), path
    listed = client.get("/api/v1/hosts").json()["hosts"]
    assert {one["host"]: one["guessed"] for one in listed if one["blamed"]} == {host: not named}


def test_a_gpu_that_moved_to_another_node_is_shown_as_moved(
    container: Container, client: httpx.Client
) -> None:
    cluster = Cluster(container, dict(HOME), named=True)
    for _ in range(2):
        assert read(container, report_document, cluster.restart().session).moved == ()
    # Someone swaps the slow GPU with one of node 0.
    other = next(gpu for gpu, node in HOME.items() if node == "node-0")
    cluster.home |= {SLOW: "node-0", other: HOME[SLOW]}
    for _ in range(2):
        report = read(container, report_document, cluster.restart().session)
        assert [(one.uuid, one.before) for one in report.moved] == [
            (SLOW, "node-2"),
            (other, "node-0"),
        ]

    assert [reading.host for reading in cluster.blamed()] == ["node-2"] * 2 + ["node-0"] * 2
    before, after = cluster.incidents()
    assert (before.document["where"], after.document["where"]) == ("node-2", "node-0")
    [gpu] = after.document["facts"]["causes"][0]["gpus"]
    assert (gpu["uuid"], gpu["moved_from"]) == (SLOW, "node-2")
    assert "moved from node-2" in client.get(f"/incidents/{after.id}/evidence").text
    here = client.get("/api/v1/hosts/node-0").json()
    assert [(one["gpu"], one["before"], one["after"]) for one in here["moves"]] == [
        (SLOW, "node-2", "node-0"),
        (other, "node-0", "node-2"),
    ]
    page = client.get("/hosts/node-0").text
    assert "came from" in page
    assert "went to" in page
