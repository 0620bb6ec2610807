"""`paceline demo`: an installation of its own with two weeks of a synthetic fleet to look at."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from app.analysis.synthesis.fleet.history import FAULT_SEED, SITES, runs
from app.analysis.synthesis.scenarios import SCENARIOS
from app.cli.demo.place import Place, open_place, settings_of_demo
from app.cli.demo.plan import ask_for_plan
from app.cli.demo.tensor import report_groups
from app.cli.server import Server, ServerError
from app.run.supervisor import Meanwhile, serve
from app.system.processes import spawn
from app.system.scratch import Scratch
from workers.child import SINGLE_THREADED

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from app.analysis.synthesis.synthesize import SyntheticSession
    from app.settings import Settings

# Its straggler also reports its times while it trains.
REPORTING: Final = "tensor-parallel"
# That runs while you look (`app.cli.demo.live`, which takes a while to import).
LIVE_JOB: Final = "live-13b"
RECORD_EVERY_S: Final = 60.0


def run_demo(settings: Settings, directory: Path | None, *, fresh: bool, live: bool = True) -> None:
    """Serve the demo until SIGINT or SIGTERM; make its history where it is not there.

    Parameters
    ----------
    settings : Settings
        Of the environment and the command line. What they say of an installation's data is left
        alone.
    directory : Path, optional
        Where the demo keeps its data.
    fresh : bool
        Make the history anew.
    live : bool
        Whether a job runs while you look.

    Raises
    ------
    InstanceRunningError, StartupError
        As of `open_place` and `serve`.
    """
    own, left_alone = settings_of_demo(settings, directory)
    if "log_level" not in own.model_fields_set:
        # A person reads along, and looks for the address.
        own = own.model_copy(update={"log_level": "warning"})
    if "pulse_record_interval_s" not in own.model_fields_set:
        # Each start of the demo is to be recorded.
        own = own.model_copy(update={"pulse_record_interval_s": RECORD_EVERY_S})
    place = open_place(own.data_dir, fresh=fresh)
    _say(f"The demo keeps its data in {place.directory}")
    if left_alone:
        _say(f"It does not use what {', '.join(left_alone)} names")
    until = place.told_until
    if until is not None:
        age_h = (datetime.now(UTC) - until).total_seconds() / 3600
        _say(f"Its history ends {age_h:.0f} h ago; `paceline demo --fresh` makes a new one")
        serve(own, meanwhile=_told(live=live))
        return

    whole = threading.Event()

    @contextlib.contextmanager
    def begin(url: str, settings: Settings) -> Iterator[None]:
        with _running(url, settings, live=live), _history(_Making(place, url, whole), settings):
            yield

    serve(own, meanwhile=Meanwhile(begin, whole))


def _told(*, live: bool) -> Meanwhile:
    """Return what goes on where the history is there."""

    @contextlib.contextmanager
    def begin(url: str, settings: Settings) -> Iterator[None]:
        with _running(url, settings, live=live):
            yield

    nothing_to_wait_for = threading.Event()
    nothing_to_wait_for.set()
    return Meanwhile(begin, nothing_to_wait_for)


@contextlib.contextmanager
def _running(url: str, settings: Settings, *, live: bool) -> Iterator[None]:
    """Let a job run while the context lasts, in a process of its own."""
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
    """What a history is made for."""

    place: Place
    url: str
    over: threading.Event  # set once it is whole, or will not be
    until: datetime = field(default_factory=lambda: datetime.now(UTC))


@contextlib.contextmanager
def _history(making: _Making, settings: Settings) -> Iterator[None]:
    """Make the history while the context lasts, in a process for each site."""
    scratch = Scratch()
    environment = {
        **settings.environment_of_child(os.environ),
        **dict.fromkeys(SINGLE_THREADED, "1"),
        "TMPDIR": str(scratch.path),
    }
    count = sum(1 for run in runs() for _ in run.sessions())
    _say(f"Analyzing two weeks of {len(runs())} jobs, {count} sessions: about a minute")
    # The processes end when their standard input does, however this one ends.
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
    """Wait for the sites, then add what a running job reports, and a plan."""
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
    making.place.tell(making.until)
    _say(f"All analyzed after {time.monotonic() - began_s:.0f} s. Open {making.url}")


def _reporting(until: datetime) -> SyntheticSession:
    """Return the latest session of the job that also reports while it trains."""
    session = SCENARIOS[REPORTING].synthesize(0, FAULT_SEED)
    run = next(run for run in runs() if run.name == session.job.name)
    *_, latest = run.sessions()
    trace = latest.synthesize(int(until.timestamp() * 1e9), session.trace.meta.labels)
    return replace(session, trace=trace)


def _say(words: str) -> None:
    sys.stderr.write(f"{words}\n")
    sys.stderr.flush()
