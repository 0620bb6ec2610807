"""Traces and metrics of real processes, at a receiver that decodes them, and at one that hangs."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import httpx
import numpy as np
import pytest
import structlog
from prometheus_client import CollectorRegistry
from sqlalchemy import select

from app.analysis.trace.encode import to_parquet
from app.analysis.trace.metadata import metadata_document
from app.errors import StartupError
from app.incidents.channel_writes import create_channel
from app.installation.open_telemetry import sending_metrics
from app.platform.database.states import SessionState
from app.platform.telemetry import Exports
from app.sessions.models.tables import Session
from tests import factories
from tests.support.nightly import by_night
from tests.support.otlp import GotSpan, OtlpReceiver
from tests.support.receiver import Receiver
from tests.support.served import client_of
from tests.support.serving import running, serving
from tests.support.sessions import small_trace
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from app.analysis.trace.model import Trace
    from app.platform.container import Container
    from tests.support.redis import RedisServer

CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
SESSIONS = "/api/v1/jobs/llm/sessions"
AT_ONCE = {
    "PACELINE_ALERT_GROUP_WAIT_S": "0",
    "PACELINE_SWEEP_INTERVAL_S": "0.2",
    "PACELINE_ALERT_ALLOWED_NETWORKS": "127.0.0.0/8",
    "PACELINE_LOG_JSON": "true",
}


@pytest.fixture
def receivers() -> Iterator[tuple[Receiver, OtlpReceiver]]:
    """Yield a receiver of alerts and a receiver of telemetry."""
    with Receiver() as messages, OtlpReceiver() as telemetry:
        yield messages, telemetry


def body(trace: Trace) -> dict[str, tuple[str | None, str | bytes]]:
    return {
        "meta": (None, json.dumps(metadata_document(trace.meta))),
        "trace": ("trace.parquet", to_parquet(trace)),
    }


def test_one_trace_goes_from_an_upload_to_the_message_about_it(
    container: Container,
    open_dir: Path,
    redis_server: RedisServer,
    receivers: tuple[Receiver, OtlpReceiver],
    capfd: pytest.CaptureFixture[str],
) -> None:
    receiver, otlp = receivers
    settings = container.settings.model_copy(
        update={"alert_allowed_networks": ("127.0.0.0/8",), "data_dir": open_dir / "data"}
    )
    of_server = replace(container, settings=settings)
    create_channel(of_server, name="hook", kind="webhook", config={"url": receiver.url})
    urls = str(container.settings.database_url), redis_server.url
    with (
        serving(open_dir, *urls, settings=AT_ONCE | otlp.environment) as address,
        client_of(address) as client,
    ):
        # Two slow sessions, because a rule may require two in a row.
        client.headers["traceparent"] = CALLER
        assert client.post(SESSIONS, files=body(small_trace())).status_code == 202
        wait_for(lambda: _is_analyzed(container, 1), "analysis")
        # Without the last step, because equal bytes would be the same session.
        last = int(small_trace().step.max())
        files = body(factories.select(small_trace(), small_trace().step != last))
        sent = client.post(SESSIONS, files=files)
        assert sent.status_code == 202, sent.text
        wait_for(lambda: bool(receiver.got), "message")
        del client.headers["traceparent"]
        # In chunks: the last one completes the session, and a worker seals it.
        for rank in np.unique(small_trace().rank).tolist():
            chunk = to_parquet(factories.select(small_trace(), small_trace().rank == rank))
            put = client.put(
                f"/api/v1/jobs/llm/attempts/1/sessions/9/chunks/rank-{rank}/0",
                content=chunk,
                params={"dp": 2, "pp": 2, "final": True},
            )
            assert put.status_code == 202, put.text
        wait_for(lambda: _is_analyzed(container, 9), "analysis of chunks")

        def spans(name: str) -> list[GotSpan]:
            return [one for one in otlp.spans if one.name == name]

        wait_for(lambda: len(spans("task analyze_session")) == 3, "spans of three analyses")
        wait_for(lambda: bool(spans("POST")), "span of the message")
        mine = {one.id: one for one in otlp.spans if one.trace == CALLER.split("-")[1]}
        told = next(one for one in mine.values() if one.name == "POST")
        assert receiver.got[0].headers["traceparent"] == f"00-{told.trace}-{told.id}-01"
        path = []
        above = told
        while True:
            path.append((above.process, above.name))
            if above.parent not in mine:
                break
            above = mine[above.parent]
        assert path == [
            ("worker io", "POST"),
            ("worker io", "task deliver_alert"),
            ("worker analysis", "store report"),
            ("worker analysis", "task analyze_session"),
            ("serve", "POST /api/v1/jobs/{job}/sessions"),
        ]
        assert above.parent == CALLER.split("-")[2]
        assert above.attributes["http.response.status_code"] == 202
        # Without the receiver's address, which may be a secret.
        assert told.attributes == {
            "http.request.method": "POST",
            "server.address": "127.0.0.1",
            "http.response.status_code": 200,
        }
        chunks = [one for one in otlp.spans if one.name.startswith("PUT ")]
        assert {one.parent for one in chunks} == {""}
        # The analysis continues the trace of a request that sent a chunk.
        assert {one.trace for one in chunks} & {one.trace for one in spans("task analyze_session")}
        # The exported metrics are those of `/metrics`.
        counted = "paceline_http_requests"
        wait_for(lambda: counted in otlp.metrics, "metrics")
        scraped = client.get("/metrics").text
        assert set(otlp.metrics) <= {
            line.split()[2].removesuffix("_total")
            for line in scraped.splitlines()
            if line.startswith("# TYPE")
        }
        assert otlp.metrics[counted].sum.is_monotonic
        wait_for(lambda: _exported(client), "count of exports")
    lines = [json.loads(line) for line in capfd.readouterr().err.splitlines() if line[:1] == "{"]
    assert {
        line["kind"] for line in lines if line.get("trace_id") == told.trace and "kind" in line
    } == {"analyze_session", "deliver_alert"}


def _is_analyzed(container: Container, number: int) -> bool:
    with container.reading() as tx:
        found = tx.session.execute(select(Session.state).where(Session.number == number)).scalar()
    return found is SessionState.ANALYZED


def _exported(client: httpx.Client) -> bool:
    return 'paceline_otlp_exports_total{outcome="exported",signal="traces"}' in (
        client.get("/metrics").text
    )


@by_night
def test_a_receiver_that_hangs_slows_no_request_and_fills_no_memory(
    container: Container, open_dir: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with OtlpReceiver(hangs=True) as otlp:
        environment = (
            container.settings.environment()
            | otlp.environment
            | {
                "PACELINE_DATA_DIR": str(open_dir / "data"),
                "PACELINE_PORT": str(port),
                "PACELINE_LOG_JSON": "true",
                "OTEL_BSP_MAX_QUEUE_SIZE": "10",
                "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "5",
                "OTEL_EXPORTER_OTLP_TIMEOUT": "600",
            }
        )
        with (
            running(environment, "serve"),
            httpx.Client(
                base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=60
            ) as client,
        ):
            wait_for(lambda: _is_there(client), "server", limit_s=240)

            def dropped() -> bool:
                assert client.get("/api/v1/jobs").status_code == 200
                assert _number(client, "paceline_otlp_waiting_spans") <= 10
                return _number(client, "paceline_otlp_dropped_spans_total") > 0

            # Dropped spans of the first batch, whose export hangs, and of the full queue behind it.
            wait_for(dropped, "a full queue", limit_s=240)
            assert otlp.asked > 0
            assert not otlp.spans
            otlp.let_go()
            wait_for(lambda: bool(otlp.spans), "spans once it answers", limit_s=240)
            wait_for(lambda: _number(client, "paceline_otlp_waiting_spans") == 0, "empty queue")


def test_a_receiver_that_is_away_is_logged_once_and_counted() -> None:
    exports = Exports()
    with structlog.testing.capture_logs() as lines:
        for exported in (True, False, False, True, True, False):
            exports.note("traces", exported=exported)
    assert [line["event"] for line in lines] == [
        "telemetry not exported, trying on",
        "telemetry exported again",
        "telemetry not exported, trying on",
    ]
    assert exports.by_outcome == {("traces", "exported"): 3, ("traces", "failed"): 3}
    assert [exports.admit(2) for _ in range(3)] == [True, True, False]
    exports.taken(2)
    assert (exports.waiting, exports.dropped) == (0, 1)


def _is_there(client: httpx.Client) -> bool:
    try:
        # The server answers, although it is not ready without a broker and workers.
        return client.get("/healthz").is_success
    except httpx.TransportError:
        return False


def _number(client: httpx.Client, name: str) -> float:
    for line in client.get("/metrics").text.splitlines():
        if line.rpartition(" ")[0] == name:
            return float(line.rpartition(" ")[2])
    return 0.0


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "OTEL_EXPORTER_OTLP_PROTOCOL is grpc"),
        ({"OTEL_BSP_MAX_QUEUE_SIZE": "many"}, "OpenTelemetry cannot use its variables OTEL_…"),
        ({"OTEL_SDK_DISABLED": "true"}, ""),
        ({"OTEL_TRACES_EXPORTER": "none"}, ""),
    ],
)
def test_variables_of_the_environment_are_used_or_named_as_unused(
    environment: dict[str, str], said: str
) -> None:
    program = (
        "from app.platform import telemetry\n"
        "try:\n    telemetry.start('here')\nexcept Exception as error:\n    print(error)\n"
        "print('on' if telemetry.is_on() else 'off')"
    )
    endpoint = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}
    ran = subprocess.run(  # noqa: S603 - the test's own
        [sys.executable, "-c", program],
        env=os.environ | endpoint | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout.splitlines()[-1] == "off"
    assert said in ran.stdout


@pytest.mark.parametrize("interval", ["0", "-1", "nan", "inf", "often"])
def test_metrics_are_not_sent_without_a_pause(
    monkeypatch: pytest.MonkeyPatch, interval: str
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", interval)
    with pytest.raises(StartupError, match="OTEL_"), sending_metrics(CollectorRegistry()):
        pass
