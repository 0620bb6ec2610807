"""A real Alertmanager: pushed alerts appear, are grouped and resolve."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.analysis.report.session_verdict import SuspectedCause
from tests.conftest import skip_or_fail
from tests.support.alerting import SLOW_NODE, Alerting
from tests.support.receiver import Receiver
from tests.support.waiting import wait_for

PROGRAMS = ("prometheus-alertmanager", "alertmanager")
OTHER_NODE = SuspectedCause("slow_worker", ("node-9",), confidence=0.97)

CONFIG = """
route:
  receiver: hook
  group_by: [job]
  group_wait: 1s
  group_interval: 1s
receivers:
  - name: hook
    webhook_configs:
      - url: {url}
"""


@dataclass(frozen=True, slots=True)
class Alertmanager:
    """A running Alertmanager, and the receiver of its notifications."""

    url: str
    forwarded: Receiver

    def alerts(self, *, active: bool) -> list[dict[str, Any]]:
        found = httpx.get(f"{self.url}/api/v2/alerts", trust_env=False).raise_for_status().json()
        return [alert for alert in found if (alert["status"]["state"] == "active") == active]

    def groups(self) -> list[dict[str, Any]]:
        answer = httpx.get(f"{self.url}/api/v2/alerts/groups", trust_env=False)
        groups: list[dict[str, Any]] = answer.raise_for_status().json()
        return groups


def _program() -> str | None:
    return next((found for name in PROGRAMS if (found := shutil.which(name))), None)


def _free_port() -> int:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port: int = unused.getsockname()[1]
    return port


def _is_ready(url: str) -> bool:
    with contextlib.suppress(httpx.TransportError):
        return httpx.get(f"{url}/-/ready", trust_env=False).is_success
    return False


@pytest.fixture
def alertmanager(tmp_path: Path) -> Iterator[Alertmanager]:
    program = _program()
    if program is None:
        skip_or_fail("there is no Alertmanager: install the package prometheus-alertmanager")
        return
    log = tmp_path / "alertmanager.log"
    with Receiver() as forwarded, log.open("wb") as output:
        (tmp_path / "config.yml").write_text(CONFIG.format(url=forwarded.url))
        port = _free_port()
        process = subprocess.Popen(  # noqa: S603 - a program of the system
            [
                program,
                f"--config.file={tmp_path / 'config.yml'}",
                f"--storage.path={tmp_path / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
                "--cluster.listen-address=",
            ],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
        url = f"http://127.0.0.1:{port}"
        try:
            wait_for(lambda: _is_ready(url) or process.poll() is not None, "Alertmanager")
            yield Alertmanager(url, forwarded)
        finally:
            process.terminate()
            process.wait()
            sys.stderr.write(log.read_text())


def test_a_real_alertmanager_takes_groups_and_resolves_what_we_push(
    alerting: Alerting, alertmanager: Alertmanager
) -> None:
    alerting.channel(
        alertmanager.forwarded,
        "alertmanager",
        kind="alertmanager",
        config={"url": alertmanager.url},
    )
    for _ in range(2):
        alerting.session(1.3, SLOW_NODE, OTHER_NODE)
    alerting.slow("other")
    alerting.pass_and_work(timedelta(minutes=1))
    assert set(alerting.states()) == {"delivered"}

    active = wait_for(lambda: alertmanager.alerts(active=True), "alerts")
    places = {(alert["labels"]["job"], alert["labels"]["where"]) for alert in active}
    assert places == {("llm", "node-7"), ("llm", "node-9"), ("other", "node-of-other")}
    assert all("GPU-hours each hour" in alert["annotations"]["description"] for alert in active)
    assert all(alert["generatorURL"].startswith("https://paceline.example/") for alert in active)

    sizes = {group["labels"]["job"]: len(group["alerts"]) for group in alertmanager.groups()}
    assert sizes == {"llm": 2, "other": 1}

    # Alertmanager's own notifications have the same body as our webhook.
    wait_for(lambda: len(alertmanager.forwarded.got) >= 2, "notifications")
    theirs = alertmanager.forwarded.got[0].json
    assert (theirs["version"], theirs["status"]) == ("4", "firing")

    alerting.fast()
    alerting.pass_and_work(timedelta(minutes=10))
    left = wait_for(
        lambda: [
            places
            for places in [{a["labels"]["job"] for a in alertmanager.alerts(active=True)}]
            if places == {"other"}
        ],
        "end of the alerts of one job",
    )
    assert left == [{"other"}]
    resolved = wait_for(
        lambda: [g.json for g in alertmanager.forwarded.got if g.json["status"] == "resolved"],
        "notification of the end",
    )
    assert resolved[0]["groupLabels"] == {"job": "llm"}


def test_an_escalation_leaves_one_alert_with_the_new_severity(
    alerting: Alerting, alertmanager: Alertmanager
) -> None:
    alerting.channel(
        alertmanager.forwarded,
        "alertmanager",
        kind="alertmanager",
        config={"url": alertmanager.url},
    )
    alerting.slow()
    alerting.pass_and_work(timedelta(minutes=1))
    assert wait_for(lambda: alertmanager.alerts(active=True), "alert")
    alerting.session(1.7)
    alerting.pass_and_work(timedelta(minutes=10))
    wait_for(
        lambda: [a["labels"]["severity"] for a in alertmanager.alerts(active=True)] == ["critical"],
        "one alert that is critical",
    )
