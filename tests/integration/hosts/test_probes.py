"""Probes of hosts: comparison with GPUs of the same model, API, and the host's page."""

from __future__ import annotations

import csv
import io
import uuid
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.hosts.build import HOUR, probe_of, session
from tests.integration.hosts.test_pages import page

if TYPE_CHECKING:
    import httpx

    from app.platform.container import Container


def send(client: httpx.Client, host: str, probe: dict[str, Any]) -> dict[str, Any]:
    answer = client.post(f"/api/v1/hosts/{host}/probes", json=probe)
    assert answer.status_code == 201, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_a_gpu_slower_than_its_like_elsewhere_is_confirmed_and_the_others_are_cleared(
    client: httpx.Client,
) -> None:
    assert send(client, "node-1", probe_of(650.0, 655.0))["outcome"] == "no peers"
    for number in range(2, 6):
        send(client, f"node-{number}", probe_of(650.0, 655.0 - number))
    slow = send(client, "node-9", probe_of(652.0, 530.0))
    assert slow["outcome"] == "confirmed"
    assert [one["outcome"] for one in slow["devices"]] == ["cleared", "confirmed"]
    figure = slow["devices"][1]["measures"]["matmul_tflops"]
    assert (round(figure["ratio"], 2), figure["peers"]) == (0.82, 10)
    assert slow["sentence"].startswith("node-9: confirmed by probe: GPU 1 reaches 530 TFLOP/s in")
    again = client.get("/api/v1/hosts/node-2/probe").json()
    assert again["outcome"] == "cleared"


def test_only_devices_of_the_same_model_are_compared(client: httpx.Client) -> None:
    for number in range(3):
        send(client, f"node-{number}", probe_of(650.0, 655.0))
    found = send(client, "old", probe_of(250.0, 251.0, model="NVIDIA A100-SXM4-80GB"))
    assert found["outcome"] == "no peers"
    assert "NVIDIA A100-SXM4-80GB" in found["sentence"]


def test_a_machine_alone_is_held_against_its_own_gpus(client: httpx.Client) -> None:
    found = send(client, "alone", probe_of(650.0, 655.0, 500.0, 652.0, 651.0, 653.0, 654.0, 649.0))
    assert [one["index"] for one in found["devices"] if one["outcome"] == "confirmed"] == ["2"]


def test_the_latest_probe_of_each_device_counts_and_old_ones_do_not(client: httpx.Client) -> None:
    for number in range(4):
        one = probe_of(900.0, ago_s=3600)
        send(client, f"node-{number}", one)
        later = {**one, "id": str(uuid.uuid4()), "at": datetime.now(UTC).isoformat()}
        later["devices"] = [{**later["devices"][0], "measures": {"matmul_tflops": 650.0}}]
        send(client, f"node-{number}", later)
    for number in range(5, 9):
        send(client, f"node-{number}", probe_of(2000.0, ago_s=200 * 86400))
    found = send(client, "suspect", probe_of(648.0))
    assert found["devices"][0]["measures"]["matmul_tflops"]["peers"] == 4
    assert found["outcome"] == "cleared"


def test_a_device_that_fails_is_confirmed_without_any_comparison(client: httpx.Client) -> None:
    probe = probe_of(650.0, 651.0)
    probe["devices"][1] |= {"measures": {}, "fault": "CUDA error: uncorrectable ECC error"}
    found = send(client, "node-1", probe)
    assert found["outcome"] == "confirmed"
    assert "GPU 1 failed: CUDA error: uncorrectable ECC error" in found["sentence"]


def test_a_probe_that_is_sent_twice_is_one_entry(client: httpx.Client) -> None:
    probe = probe_of(650.0)
    assert send(client, "node-1", probe) == send(client, "node-1", probe)
    rows = list(csv.DictReader(io.StringIO(client.get("/hosts/node-1/probes.csv").text)))
    assert [(row["gpu"], row["matmul_tflops"]) for row in rows] == [("0", "650.0")]


@pytest.mark.parametrize(
    ("change", "at"),
    [
        ({"devices": []}, "devices"),
        ({"at": "yesterday"}, "at"),
        ({"at": "0001-01-02T00:00:00Z"}, "at"),
        ({"id": "7"}, "id"),
        ({"guess": True}, "guess"),
        ({"devices": [{"index": "0", "model": "x", "measures": {"luck": 1.0}}]}, "luck"),
        ({"devices": [{"index": "0", "model": "x\u0000", "measures": {}}]}, "model"),
        ({"devices": [{"index": "0", "model": "x", "measures": {}}] * 257}, "devices"),
        *(
            ({"devices": [{"index": "0", "model": "x", "measures": {"matmul_tflops": bad}}]}, "mat")
            for bad in (0, -1.0, 1e300, "fast", True)
        ),
    ],
)
def test_an_invalid_probe_is_refused_with_its_place(
    client: httpx.Client, change: dict[str, Any], at: str
) -> None:
    answer = client.post("/api/v1/hosts/node-1/probes", json={**probe_of(650.0), **change})
    assert answer.status_code == 422, answer.text
    assert at in answer.text
    assert client.get("/api/v1/hosts/node-1/probe").status_code == 404


def test_numbers_that_are_none_and_times_to_come_are_refused(client: httpx.Client) -> None:
    text = '{"id": "%s", "at": "%s", "devices": [{"index": "0", "model": "x", "measures": %s}]}'
    now = datetime.now(UTC)
    for figure, at, status in (
        ('{"matmul_tflops": NaN}', now, 422),
        ('{"matmul_tflops": Infinity}', now, 422),
        ("{}", now + timedelta(hours=1), 409),
    ):
        body = text % (uuid.uuid4(), at.isoformat(), figure)
        answer = client.post(
            "/api/v1/hosts/node-1/probes",
            content=body,
            headers={"Content-Type": "application/json"},
        )
        assert answer.status_code == status, answer.text
    assert answer.json()["code"] == "probe.in_future"


def test_names_of_hosts_that_no_page_can_show_are_refused(client: httpx.Client) -> None:
    for host in ("n" * 256, "node%0A1", "node%001"):
        answer = client.post(f"/api/v1/hosts/{host}/probes", json=probe_of(650.0))
        assert answer.status_code == 422, answer.text


def test_the_page_of_a_host_says_confirmed_by_probe_until_it_is_repaired(
    container: Container, client: httpx.Client
) -> None:
    for hours in (30, 20, 10):
        session(container, {"node-1": 1.6, "node-2": 1.0}, ago=hours * HOUR)
    found = page(client, "/hosts/node-1")
    assert "python -m paceline_client probe http://" in found.text
    for number in range(2, 7):
        send(client, f"node-{number}", probe_of(650.0))
    send(client, "node-1", probe_of(500.0, ago_s=600.0))
    found = page(client, "/hosts/node-1")
    assert "Confirmed by probe" in found.one("p", "line").text
    assert "GPU 0 reaches 500 TFLOP/s in matrix products" in found.text
    assert client.post("/api/v1/hosts/node-1/repairs", json={"what": "new GPU"}).status_code == 201
    found = page(client, "/hosts/node-1")
    assert "Confirmed by probe" not in found.one("p", "line").text
    assert "before the last repair" in found.text


def test_a_host_that_was_only_probed_has_a_page(client: httpx.Client) -> None:
    send(client, "spare", probe_of(650.0))
    assert "Probed; 4 or more other devices" in page(client, "/hosts/spare").text
