"""`paceline demo`: synthetic jobs, each with its own straggler, sent as a training job would."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Final

from app.alerts.rules import DEMO_LABELS
from app.analysis.synthesis.scenarios import SCENARIOS, Scenario
from app.analysis.synthesis.synthesize import SyntheticSession, synthesize
from app.analysis.trace.encode import to_parquet
from app.analysis.trace.formats.parquet import PARQUET
from app.analysis.trace.metadata import metadata_document
from app.cli.server import Body, Server, ServerError
from app.cli.synthetic.tensor import report_groups
from app.errors import StartupError

# Sessions of each job: enough to see since when it is slow.
SESSIONS: Final = 5
# Faults come after this many healthy sessions; what is built into a job is there from the first.
HEALTHY_SESSIONS: Final = 3
# A worker that is slow stays slow: one incident, not another one for each session.
FAULT_SEED: Final = 4
# Its straggler also reports its times while it trains.
REPORTING: Final = "tensor-parallel"
COME_LATER: Final = frozenset({"slow-worker", "network", "garbage-collection", "virtual-stages"})


def send_demo_sessions(url: str) -> None:
    """Send the demo's sessions to a server; what it has already is not stored again."""
    sessions = list(_sessions())
    sys.stderr.write(f"Sending {len(sessions)} synthetic sessions of {len(SCENARIOS)} jobs\n")
    try:
        with Server(url) as server:
            for scenario, seed in sessions:
                _send(server, _synthesize(scenario, seed))
            sys.stderr.write("Reporting the times of a tensor-parallel group\n")
            report_groups(server, _synthesize(SCENARIOS[REPORTING], 0))
    except ServerError as error:
        raise StartupError(f"The demo's sessions could not be sent: {error.message}") from error
    sys.stderr.write(f"All sent. Open {url}\n")


def _sessions() -> Iterator[tuple[Scenario, int]]:
    """Yield the sessions in the order in which jobs that run side by side would send them."""
    for seed in range(SESSIONS):
        for scenario in SCENARIOS.values():
            yield scenario, seed


def _synthesize(scenario: Scenario, seed: int) -> SyntheticSession:
    if scenario.name in COME_LATER and seed < HEALTHY_SESSIONS:
        return synthesize(scenario.job, seed=seed)
    return scenario.synthesize(seed, FAULT_SEED)


def _send(server: Server, session: SyntheticSession) -> None:
    document = metadata_document(session.trace.meta)
    # No rule that waits for data waits for more of these.
    document["labels"] = {**document.get("labels", {}), **DEMO_LABELS}
    meta = json.dumps(document).encode()
    trace = Body(to_parquet(session.trace), PARQUET.media_types[0])
    server.send(
        session.job.name,
        lambda: trace,
        Body(meta, "application/json"),
        lambda said: sys.stderr.write(f"{said}\n"),
    )
