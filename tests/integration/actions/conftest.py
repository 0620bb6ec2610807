"""An installation whose actions go to receivers on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from app.platform.settings import Settings
from tests.conftest import skip_or_fail
from tests.support import slurm
from tests.support.acting import Acting
from tests.support.alerting import LOOPBACK
from tests.support.project import build
from tests.support.receiver import Receiver
from tests.support.served import client_of_served
from tests.support.slurm import Slurm


@pytest.fixture
def acting(settings: Settings) -> Iterator[Acting]:
    container = build(
        settings.model_copy(
            update={
                "alert_allowed_networks": LOOPBACK,
                "alert_attempt_limit_s": 5.0,
                "external_url": "https://paceline.example",
            }
        )
    )
    yield Acting(container)
    container.close()


@pytest.fixture
def client(acting: Acting) -> Iterator[httpx.Client]:
    with client_of_served(acting.container) as client:
        yield client


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as running:
        yield running


@pytest.fixture(scope="session")
def running_slurm() -> Iterator[Slurm]:
    if not slurm.is_there():
        skip_or_fail(slurm.MISSING)
    with Slurm() as cluster:
        yield cluster


@pytest.fixture
def cluster(running_slurm: Slurm, monkeypatch: pytest.MonkeyPatch) -> Slurm:
    """Return the cluster, without jobs and drained nodes, as the server's environment names it."""
    monkeypatch.setenv("SLURM_CONF", str(running_slurm.conf))
    running_slurm.cancel()
    for node in slurm.NODES:
        if running_slurm.is_drained(node):
            running_slurm.scontrol("update", f"nodename={node}", "state=resume")
    assert not any(running_slurm.is_drained(node) for node in slurm.NODES)
    return running_slurm


@pytest.fixture
def slurming(acting: Acting, cluster: Slurm) -> Iterator[Acting]:
    """An installation whose operator allows Slurm."""
    del cluster
    container = build(
        acting.container.settings.model_copy(update={"slurm_scontrol": Path(slurm.scontrol())})
    )
    yield Acting(container)
    container.close()
