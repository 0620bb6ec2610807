"""`paceline demo`: a separate installation with two weeks of a synthetic fleet."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from app.analysis.synthesis.fleet_history import FAULT_SEED, SITES, runs
from app.analysis.synthesis.scenarios import SCENARIOS
from app.cli.demo.tensor import report_groups
from app.cli.server import Server, ServerError
from app.errors import StartupError
from app.platform.database.states import PlanState
from app.platform.embedded.binaries import is_root, make_directories
from app.platform.embedded.cluster import empty_instance, has_cluster
from app.platform.processes import spawn
from app.platform.resources import Scratch
from app.platform.settings import default_data_dir
from app.run.supervisor import Meanwhile, serve
from workers.child import SINGLE_THREADED

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from app.analysis.synthesis.synthesize import SyntheticSession
    from app.platform.settings import Settings


# ---- The demo's data directory: never that of an installation ----------------------------------


# Settings that name the data of an installation, or the keys to the data. The demo ignores them, so
# that it cannot change that data.
OF_INSTALLATIONS: Final = (
    "database_url",
    "broker_url",
    "data_dir",
    "blob_url",
    "blob_endpoint",
    "blob_region",
    "blob_access_key_id",
    "blob_secret_access_key",
    "secret_keys",
    "secret_key_file",
)
# File that marks a data directory as the demo's, and contains the end of its history.
MARK: Final = "demo.json"
_SCHEMA: Final = "paceline.demo/1"


@dataclass(frozen=True, slots=True)
class Place:
    """A data directory of the demo."""

    directory: Path

    @property
    def history_end(self) -> datetime | None:
        """Return the end of the complete history; None if it is incomplete.

        Raises
        ------
        StartupError
            The mark cannot be read.
        """
        path = self.directory / MARK
        try:
            until = json.loads(path.read_text())["until"]
            return None if until is None else datetime.fromisoformat(until)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise StartupError(f"Cannot read {path}: {error}") from error

    def mark_end(self, until: datetime | None) -> None:
        """Record the end of the complete history; None marks it as incomplete.

        Raises
        ------
        StartupError
            The mark cannot be written.
        """
        document = {"schema": _SCHEMA, "until": None if until is None else until.isoformat()}
        path = self.directory / MARK
        try:
            part = path.with_suffix(".part")
            part.write_text(json.dumps(document) + "\n")
            part.replace(path)
        except OSError as error:
            raise StartupError(f"Cannot write {path}: {error}") from error


def default_demo_dir() -> Path:
    """Return the default data directory of the demo: next to that of an installation."""
    installation = default_data_dir()
    return installation.with_name(
        "demo" if installation.name == "data" else f"{installation.name}-demo"
    )


def settings_of_demo(settings: Settings, directory: Path | None) -> tuple[Settings, list[str]]:
    """Return the demo's settings, and the variables of an installation that the demo ignores.

    Parameters
    ----------
    settings : Settings
        Settings of the environment.
    directory : Path, optional
        Data directory of the demo.
    """
    defaults = type(settings).model_construct()
    given = [name for name in OF_INSTALLATIONS if name in settings.model_fields_set]
    own = {name: getattr(defaults, name) for name in OF_INSTALLATIONS}
    own["data_dir"] = default_demo_dir() if directory is None else directory
    return settings.model_copy(update=own), [f"PACELINE_{name.upper()}" for name in given]


def open_place(directory: Path, *, fresh: bool) -> Place:
    """Open the demo's data directory; empty it if its history is incomplete.

    Parameters
    ----------
    fresh : bool
        Whether to empty it in any case.

    Raises
    ------
    InstanceRunningError
        A demo runs on this directory.
    StartupError
        The directory contains the data of an installation, or cannot be used.
    """
    if has_cluster(directory) and not is_demo(directory):
        raise StartupError(
            f"{directory} holds the data of an installation. The demo keeps its own apart: leave "
            "out --data-dir, or name another directory."
        )
    place = Place(directory)
    if not is_demo(directory):
        try:
            make_directories(directory, 0o711 if is_root() else 0o700)
        except OSError as error:
            raise StartupError(f"Cannot create the demo's directory: {error}") from error
        place.mark_end(None)
    elif fresh or place.history_end is None:
        empty_instance(directory, keep=(MARK,), first=lambda: place.mark_end(None))
    return place


def is_demo(directory: Path) -> bool:
    """Return whether a data directory is the demo's."""
    return (directory / MARK).exists()


def refuse_demo(settings: Settings) -> None:
    """Refuse to serve the demo's data directory as an installation.

    Raises
    ------
    StartupError
    """
    if settings.database_url is None and is_demo(settings.data_dir):
        raise StartupError(
            f"{settings.data_dir} holds the data of the demo. Look at it with `paceline demo`, and "
            "give the installation another data directory."
        )


# ---- The demo's plan: a pipeline for a cluster of two generations of GPUs ----------------------


_LOOK_S: Final = 0.5
_LAYER: Final = {
    "forward_ms": 4.2,
    "backward_ms": 8.6,
    "parameter_bytes": 4e8,
    "output_bytes": 3.2e7,
    "stored_activation_bytes": 2.2e8,
}
REQUEST: Final[dict[str, Any]] = {
    "name": "dense-34b on new and old GPUs",
    "time_limit_s": 20,
    "spec": {
        "model": {"layers": [_LAYER] * 24},
        "devices": [
            {"type": "h100", "nodes": 2, "gpus_per_node": 4, "speed": 2.2, "memory_bytes": 8e10},
            {"type": "a100", "nodes": 2, "gpus_per_node": 4, "memory_bytes": 8e10},
        ],
        "microbatches": 32,
    },
}


def ask_for_plan(server: Server, leaving: threading.Event) -> None:
    """Request the plan and wait for it; a repeated request returns the same plan.

    Parameters
    ----------
    leaving : Event
        Ends the wait when it is set.
    """
    plan = server.exchange("POST", "/api/v1/plans", REQUEST)["plan"]
    while server.get(f"/api/v1/plans/{plan}")["state"] in PlanState.UNDERWAY:
        if leaving.wait(_LOOK_S):
            return


# Job whose tensor-parallel straggler also reports its times during training.
REPORTING: Final = "tensor-parallel"
# Name of the live job (of `app.cli.demo.live`, whose import is slow).
LIVE_JOB: Final = "live-13b"
RECORD_EVERY_S: Final = 60.0


def run_demo(settings: Settings, directory: Path | None, *, fresh: bool, live: bool = True) -> None:
    """Serve the demo until SIGINT or SIGTERM; write its history first if it is missing.

    Parameters
    ----------
    settings : Settings
        Settings of the environment and the command line. Those that name an installation's data are
        ignored.
    directory : Path, optional
        Data directory of the demo.
    fresh : bool
        Whether to write the history again.
    live : bool
        Whether a live job runs meanwhile.

    Raises
    ------
    InstanceRunningError, StartupError
        As of `open_place` and `serve`.
    """
    own, left_alone = settings_of_demo(settings, directory)
    if "log_level" not in own.model_fields_set:
        # A person looks for the address between the lines of the log, so it has warnings only.
        own = own.model_copy(update={"log_level": "warning"})
    if "pulse_record_interval_s" not in own.model_fields_set:
        # Short, so that a session of the live job is recorded at each start of the demo.
        own = own.model_copy(update={"pulse_record_interval_s": RECORD_EVERY_S})
    place = open_place(own.data_dir, fresh=fresh)
    _say(f"The demo keeps its data in {place.directory}")
    if left_alone:
        _say(f"It does not use what {', '.join(left_alone)} names")
    until, complete = place.history_end, threading.Event()
    if until is not None:
        complete.set()
        age_h = (datetime.now(UTC) - until).total_seconds() / 3600
        _say(f"Its history ends {age_h:.0f} h ago; `paceline demo --fresh` makes a new one")

    @contextlib.contextmanager
    def begin(url: str, settings: Settings) -> Iterator[None]:
        with contextlib.ExitStack() as running:
            running.enter_context(_running(url, settings, live=live))
            if not complete.is_set():
                running.enter_context(_history(_Making(place, url, complete), settings))
            yield

    serve(own, meanwhile=Meanwhile(begin, complete))


@contextlib.contextmanager
def _running(url: str, settings: Settings, *, live: bool) -> Iterator[None]:
    """Run the live job in its own process while the context is open."""
    if not live:
        yield
        return
    _say(f"A job runs while you look; within three minutes it was slow: {url}jobs/{LIVE_JOB}")
    child = spawn(
        [*(sys.executable, "-m", "app.cli.demo.live"), *("--url", url)],
        parent_death=signal.SIGKILL,
        environment={
            **settings.environment_of_child(os.environ),
            **dict.fromkeys(SINGLE_THREADED, "1"),
        },
        stdin=subprocess.PIPE,
    )
    try:
        yield
    finally:
        child.kill()
        child.wait()


@dataclass(frozen=True, slots=True)
class _Making:
    """Parameters of writing a history."""

    place: Place
    url: str
    over: threading.Event  # set once it is whole, or will not be
    until: datetime = field(default_factory=lambda: datetime.now(UTC))


@contextlib.contextmanager
def _history(making: _Making, settings: Settings) -> Iterator[None]:
    """Write the history while the context is open, in one process for each site."""
    scratch = Scratch()
    environment = {
        **settings.environment_of_child(os.environ),
        **dict.fromkeys(SINGLE_THREADED, "1"),
        "TMPDIR": str(scratch.path),
    }
    count = sum(1 for run in runs() for _ in run.sessions())
    _say(f"Analyzing two weeks of {len(runs())} jobs, {count} sessions: about a minute")
    # The processes end when their standard input does, however this process ends.
    children = [
        spawn(
            [
                *(sys.executable, "-m", "app.cli.demo.replay"),
                *("--site", site, "--until", making.until.isoformat()),
            ],
            parent_death=signal.SIGKILL,
            environment=environment,
            stdin=subprocess.PIPE,
        )
        for site in SITES
    ]
    leaving = threading.Event()
    thread = threading.Thread(target=_complete, args=(making, children, leaving), name="demo")
    thread.start()
    try:
        yield
    finally:
        leaving.set()
        for child in children:
            child.kill()
        thread.join()
        scratch.remove()


def _complete(
    making: _Making, children: Sequence[subprocess.Popen[bytes]], leaving: threading.Event
) -> None:
    """Wait for the history of all sites, then report tensor-parallel groups and request a plan."""
    began_s = time.monotonic()
    statuses = [child.wait() for child in children]
    making.over.set()
    if leaving.is_set():
        return
    if any(statuses):
        _say("The demo's history could not be made; its processes said why")
        return
    try:
        with Server(making.url) as server:
            report_groups(server, _reporting(making.until))
            ask_for_plan(server, leaving)
    except ServerError as error:
        if not leaving.is_set():
            _say(f"The demo's history could not be made: {error.message}")
        return
    if leaving.is_set():
        return
    making.place.mark_end(making.until)
    _say(f"All analyzed after {time.monotonic() - began_s:.0f} s. Open {making.url}")


def _reporting(until: datetime) -> SyntheticSession:
    """Return the latest session of the job whose groups also report during training."""
    session = SCENARIOS[REPORTING].synthesize(0, FAULT_SEED)
    run = next(run for run in runs() if run.name == session.job.name)
    *_, latest = run.sessions()
    trace = latest.synthesize(int(until.timestamp() * 1e9), session.trace.meta.labels)
    return replace(session, trace=trace)


def _say(words: str) -> None:
    sys.stderr.write(f"{words}\n")
    sys.stderr.flush()
