"""Metrics, summed over several processes."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from app.installation import metrics as metrics_of_all
from app.installation.metrics import MetricsOfAll
from app.platform.resources import Place

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def counted(requests: int, seconds: tuple[float, ...], free: int) -> CollectorRegistry:
    registry = CollectorRegistry()
    Counter("requests", "Requests.", ("status",), registry=registry).labels("200").inc(requests)
    duration = Histogram("duration_seconds", "Time.", buckets=(1.0, 2.0), registry=registry)
    for one in seconds:
        duration.observe(one)
    Gauge("paceline_spool_free_bytes", "Free bytes.", registry=registry).set(free)
    return registry


def test_counts_of_all_processes_add_up_and_what_all_see_alike_does_not(tmp_path: Path) -> None:
    (tmp_path / "metrics-1").write_bytes(generate_latest(counted(5, (0.5, 3.0), 80)))
    own = counted(2, (1.5,), 100)
    families = MetricsOfAll(Place(tmp_path, 0, 3), own).collect()
    samples = {
        (sample.name, *sample.labels.values()): sample.value
        for family in families
        for sample in family.samples
    }
    assert samples == {
        ("requests_total", "200"): 7,
        ("duration_seconds_bucket", "1.0"): 1,
        ("duration_seconds_bucket", "2.0"): 2,
        ("duration_seconds_bucket", "+Inf"): 3,
        ("duration_seconds_count",): 3,
        ("duration_seconds_sum",): 5.0,
        ("paceline_spool_free_bytes",): 80,
    }


def test_nothing_is_written_once_the_directory_of_a_stopped_server_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed: list[threading.ExceptHookArgs] = []
    monkeypatch.setattr(threading, "excepthook", failed.append)
    monkeypatch.setattr(metrics_of_all, "WRITE_EVERY_S", 0.001)
    before = set(threading.enumerate())
    MetricsOfAll(Place(tmp_path / "gone", 0, 2), counted(1, (), 1)).start()
    for thread in set(threading.enumerate()) - before:
        thread.join(10)
        assert not thread.is_alive()
    assert not failed
