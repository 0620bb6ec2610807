"""Sizes and times of pages for installations of three sizes: ``python -m benchmarks.pages``.

The server and its database are separate processes. Sizes: a small installation; one of a thousand
jobs with ten sessions each and one job with 1,200; and one session of 1,024 × 16 workers. Sessions
of the second are copied rows of an analyzed session, in the lists, the ledger of hosts and the
figures of the fleet; half of its jobs have firing incidents. For the last, the requests of its page
are measured too: map and timeline of another step each time, and a what-if question. Bytes are
those of compressed bodies as a browser receives them, elements those of the page before any script,
statements those that the database received, and times are medians on this machine, over the
loopback address, with compression. If there is a `chromium` on PATH: also the time until it paints
the page of a session, small and large, and until that page shows sentence, facts and map at
400 kbit/s with a latency of 400 ms.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import statistics
import sys
import tempfile
import time
import uuid
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import httpx
from playwright.sync_api import sync_playwright
from sqlalchemy import select

from app.access.models import DEFAULT_PROJECT_ID
from app.analysis.synthesis.injections.computations import SlowWorker
from app.analysis.synthesis.job import JobModel
from app.analysis.synthesis.synthesize import synthesize
from app.analysis.trace.encode import to_parquet
from app.analysis.trace.formats.own import PARQUET
from app.analysis.trace.metadata import metadata_document
from app.analysis.trace.model import Sizes
from app.bootstrap import build
from app.platform.database import migrate
from app.platform.database.states import SessionState, TaskState
from app.platform.database.task_runs import TaskRun
from app.platform.embedded.server import EmbeddedPostgres
from app.platform.resources import answering
from app.platform.settings import Settings
from app.platform.tasks.runs import claim
from app.run.application import create_app
from app.run.http import HttpServer, address_of, listen
from app.sessions.analyze import analyze_session
from benchmarks.support.stored import copy_session, let_fire
from benchmarks.support.weighing import Processors, Statements, Weighed, elements, in_columns, table

if TYPE_CHECKING:
    from collections.abc import Mapping

    from playwright.sync_api import Browser

    from app.platform.container import Container

PAINTS: Final = 5
WIDTH, HEIGHT = 1440, 900
# Options without which the browser contacts its vendor.
ARGUMENTS: Final = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
# A slow network: 400 kbit/s, with a latency of 400 ms.
SLOW_BYTES_PER_S: Final = 400_000 / 8
SLOW_LATENCY_MS: Final = 400
# Script that records when the sentence, the facts and the map are on the screen.
USEFUL: Final = """() => {
  const parts = ['h1', '.facts', '#heatmap :is(.first path, canvas)'];
  const look = () => {
    const isThere = performance.getEntriesByName('first-contentful-paint').length
      && parts.every((part) => document.querySelector(part)?.getBoundingClientRect().width);
    if (isThere) window.usefulAt = performance.now();
    else requestAnimationFrame(look);
  };
  requestAnimationFrame(look);
}"""
USEFUL_AT: Final = "() => window.usefulAt ?? null"
WAIT_MS: Final = 50
DRAWN: Final = """() => document.querySelector('#heatmap[data-drawn]')
  && document.querySelector('#timeline[data-drawn]') !== null"""
PAINTED: Final = (
    """() => performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? 0"""
)
# Script that selects another step, and waits for its map and its timeline.
STEP: Final = """async (at) => {
  const range = document.querySelector('#step');
  const timeline = document.querySelector('#timeline');
  const start = performance.now();
  range.value = at;
  range.dispatchEvent(new Event('input', { bubbles: true }));
  range.dispatchEvent(new Event('change', { bubbles: true }));
  const step = () => document.querySelector('#step-read').textContent.match(/Step (-?\\d+)/)[1];
  const frame = () => new Promise((resolve) => { requestAnimationFrame(resolve); });
  do await frame(); while (timeline.dataset.drawn !== step());
  return performance.now() - start;
}"""


@dataclass(frozen=True, slots=True)
class Painted:
    """Times until parts of a page are painted; medians, seconds from the request.

    Parameters
    ----------
    size : str
    first_s, drawn_s : float
        First text or figure; map and timeline.
    step_s : float
        From the selection of another step to its timeline.
    useful_s : float
        Sentence, facts and map on a slow network.
    useful_bytes : float
        Bytes received by then, compressed, with headers.
    """

    size: str
    first_s: float
    drawn_s: float
    step_s: float
    useful_s: float
    useful_bytes: float


def paint(url: str, pages: Mapping[str, str]) -> list[Painted]:
    """Return the painting times of pages of sessions, by size; empty without a browser."""
    program = shutil.which("chromium-headless-shell") or shutil.which("chromium")
    if program is None:
        return []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=list(ARGUMENTS))
        try:
            # Measured in turns, so that other load of the machine affects all equally.
            of_sizes: dict[str, list[tuple[float, ...]]] = {size: [] for size in pages}
            for run in range(PAINTS):
                for size, page in pages.items():
                    address = f"{url}{page}"
                    of_sizes[size].append(
                        (*_once(browser, address, run), *_slowly(browser, address))
                    )
        finally:
            browser.close()
    return [
        Painted(size, *(statistics.median(column) for column in zip(*times, strict=True)))
        for size, times in of_sizes.items()
    ]


def _once(browser: Browser, address: str, run: int) -> tuple[float, float, float]:
    context = browser.new_context(viewport={"width": WIDTH, "height": HEIGHT})
    page = context.new_page()
    page.goto(address)
    # The page requests its timeline once it is visible.
    page.locator("#timeline").scroll_into_view_if_needed()
    page.wait_for_function(DRAWN)
    drawn_ms = page.evaluate("() => performance.now()")
    first_ms = page.evaluate(PAINTED)
    last = int(page.evaluate("() => document.querySelector('#step').max"))
    now = int(page.evaluate("() => document.querySelector('#step').value"))
    step_ms = page.evaluate(STEP, (now + 1 + run) % (last + 1))
    context.close()
    return first_ms / 1000, drawn_ms / 1000, step_ms / 1000


def _slowly(browser: Browser, address: str) -> tuple[float, int]:
    """Return the time and the received bytes until the first screen is useful on a slow network."""
    context = browser.new_context(viewport={"width": WIDTH, "height": HEIGHT})
    page = context.new_page()
    page.add_init_script(f"({USEFUL})()")
    devtools = context.new_cdp_session(page)
    devtools.send("Network.enable")
    devtools.send(
        "Network.emulateNetworkConditions",
        {
            "offline": False,
            "latency": SLOW_LATENCY_MS,
            "downloadThroughput": SLOW_BYTES_PER_S,
            "uploadThroughput": SLOW_BYTES_PER_S,
        },
    )
    # Events have parts of bodies; the event of a response's end has the total including headers.
    parts: list[tuple[str, float, int]] = []
    whole: list[tuple[str, float, int]] = []
    for name, came in (("dataReceived", parts), ("loadingFinished", whole)):
        devtools.on(f"Network.{name}", lambda event, came=came: came.append(_came(event)))
    begun: list[float] = []
    devtools.on("Network.requestWillBeSent", lambda event: begun.append(event["timestamp"]))
    page.goto(address, wait_until="commit")
    while (useful_ms := page.evaluate(USEFUL_AT)) is None:
        page.wait_for_timeout(WAIT_MS)
    useful_s = useful_ms / 1000
    context.close()
    sizes: dict[str, int] = {}
    for request, at, length in parts:
        if at - begun[0] <= useful_s:
            sizes[request] = sizes.get(request, 0) + length
    sizes |= {request: length for request, at, length in whole if at - begun[0] <= useful_s}
    return useful_s, sum(sizes.values())


def _came(event: Mapping[str, Any]) -> tuple[str, float, int]:
    """Return request, time and number of bytes of an event of the browser."""
    return event["requestId"], event["timestamp"], int(event["encodedDataLength"])


def painted_table(painted: list[Painted]) -> str:
    """Return the figures as a table of text."""
    if not painted:
        return "No chromium on PATH: nothing was painted."
    rows = [
        [
            page.size,
            *(f"{1000 * value:.0f} ms" for value in (page.first_s, page.drawn_s, page.step_s)),
            f"{page.useful_s:.1f} s",
            f"{page.useful_bytes / 1000:.0f} kB",
        ]
        for page in painted
    ]
    head = (
        "session",
        "first paint",
        "map and timeline drawn",
        "another step with its timeline",
        "first useful screen at 400 kbit/s",
        "its size",
    )
    return in_columns(head, rows, texts=1)


SMALL: Final = JobModel(Sizes(dp=4, pp=4, tp=4), microbatches=8, steps=16, name="small")
LARGE: Final = JobModel(Sizes(dp=1024, pp=16), microbatches=8, steps=6, name="large")
JOBS: Final = 1000
SESSIONS: Final = 10
GPUS_OF_A_HOST: Final = 8
COPIES: Final = "copied-"
LONG: Final = "long-"
LONG_SESSIONS: Final = 1200
# A statement is prepared with its fifth use; users rarely wait for the uses before it.
RUNS: Final = 15
# Encodings that browsers accept.
BROWSER: Final = {"Accept": "text/html", "Accept-Encoding": "gzip, deflate, br, zstd"}
# DP ranks of the timeline on the page of a session.
LANES: Final = re.compile(r'id="perfetto"[^>]*?/timeline\?step=\d+((?:&amp;dp=\d+)*)"')


class _Server:
    """A running server, with methods that send sessions and measure pages."""

    def __init__(
        self, container: Container, client: httpx.Client, seen: Statements, used: Processors
    ) -> None:
        self.container, self._client, self._seen, self._used = container, client, seen, used

    def send(self, model: JobModel) -> uuid.UUID:
        """Send a session with a slow worker, and analyze it here."""
        trace = synthesize(model, [SlowWorker((1, 1), 1.8)], seed=1).trace
        hosts = {rank: f"node-{rank // GPUS_OF_A_HOST}" for rank in range(model.sizes.world)}
        meta = json.dumps(metadata_document(replace(trace.meta, hosts=hosts)))
        body = to_parquet(trace)
        del trace
        answer = self._client.post(
            f"/api/v1/jobs/{model.name}/sessions",
            files={"meta": (None, meta), "trace": ("t", body, PARQUET.media_types[0])},
        )
        answer.raise_for_status()
        queued = select(TaskRun.id).where(TaskRun.state == TaskState.QUEUED)
        with self.container.uow() as tx:
            runs = list(tx.session.execute(queued).scalars())
        for run in runs:
            held = claim(self.container, run)
            if held is not None:
                analyze_session(self.container, held)
        session = answer.json()["session"]
        state = self._client.get(f"/api/v1/sessions/{session}").json()["state"]
        if state != SessionState.ANALYZED:
            raise RuntimeError(f"The session of {model.name} is {state}")
        return uuid.UUID(session)

    def ids(self, address: str, of: str) -> list[str]:
        """Return the ids or names in a list of the API."""
        answer = self._client.get(address)
        answer.raise_for_status()
        return [item.get("id") or item["host"] for item in answer.json()[of]]

    def weigh(self, size: str, page: str, address: str) -> Weighed:
        """Request a page several times as a browser does, and return its size and times."""
        plain = self._client.get(address, headers=BROWSER)
        plain.raise_for_status()
        times, used, compressed = [], [], 0
        for _ in range(RUNS):
            self._seen.count = 0
            start, used_s = time.perf_counter(), self._used.used_s()
            with self._client.stream("GET", address, headers=BROWSER) as answer:
                compressed = sum(len(part) for part in answer.iter_raw())
            times.append(time.perf_counter() - start)
            used.append(self._used.used_s() - used_s)
        return Weighed(
            size=size,
            page=page,
            compressed_bytes=compressed,
            plain_bytes=len(plain.content),
            elements=elements(plain.text),
            statements=self._seen.count,
            time_s=statistics.median(times),
            processor_s=statistics.median(used),
        )

    def weigh_choices(self, size: str, session: uuid.UUID) -> list[Weighed]:
        """Measure the requests of a session's page: maps, timelines, and a question."""
        api = f"/api/v1/sessions/{session}"
        steps = self._client.get(f"{api}/report").json()["steps"]["analyzed"]
        page = self._client.get(f"/sessions/{session}").text
        [query] = set(LANES.findall(page))
        ranks = query.replace("&amp;", "&")
        times: dict[str, list[tuple[float, float]]] = {
            "step: map": [],
            "step: timeline": [],
            "what-if": [],
        }
        sizes = dict.fromkeys(times, (0, 0))
        for run in range(RUNS):
            step = steps[run % len(steps)]
            question = {
                "changes": [
                    {"select": {"workers": [[1, 1]], "steps": [step]}, "duration": "peers"},
                ]
            }
            requests = {
                "step: map": ("GET", f"{api}/heatmaps?step={step}", None),
                "step: timeline": ("GET", f"{api}/timeline?step={step}{ranks}&format=lanes", None),
                "what-if": ("POST", f"{api}/what-if", question),
            }
            for name, (method, address, body) in requests.items():
                start, used_s = time.perf_counter(), self._used.used_s()
                answer = self._client.request(method, address, headers=BROWSER, json=body)
                took_s = time.perf_counter() - start
                times[name].append((took_s, self._used.used_s() - used_s))
                answer.raise_for_status()
                sizes[name] = (answer.num_bytes_downloaded, len(answer.content))
        return [
            Weighed(
                size, name, *sizes[name], 0, 0, *map(statistics.median, zip(*of_name, strict=True))
            )
            for name, of_name in times.items()
        ]


def measure(
    directory: Path, jobs: int, sessions: int, large: JobModel
) -> tuple[list[Weighed], list[Painted]]:
    """Return the figures of every page; `directory` contains the database."""
    with EmbeddedPostgres(directory, durable=False) as postgres:
        settings = Settings(database_url=postgres.url, data_dir=directory / "data", port=0)
        migrate.upgrade(postgres.url)
        container = build(settings).within(DEFAULT_PROJECT_ID)
        seen = Statements()
        seen.watch(container.engine)
        listener = listen(settings)
        http = HttpServer(create_app(container), listener)
        http.start(lambda: False)
        # Set as in `paceline serve`.
        answering()
        try:
            with httpx.Client(
                base_url=address_of(listener), timeout=600, trust_env=False
            ) as client:
                server = _Server(container, client, seen, Processors(postgres.pid))
                small = server.send(SMALL)
                weighed = _weigh_fleet(server, small, jobs, sessions)
                session, size = server.send(large), f"{large.sizes.dp:,} × {large.sizes.pp}"
                weighed.append(server.weigh(size, "session", f"/sessions/{session}"))
                weighed += server.weigh_choices(size, session)
                pages = {"small": f"/sessions/{small}", size: f"/sessions/{session}"}
                return weighed, paint(address_of(listener).rstrip("/"), pages)
        finally:
            http.stop()
            container.close()


def _weigh_fleet(server: _Server, template: uuid.UUID, jobs: int, sessions: int) -> list[Weighed]:
    weighed = [
        server.weigh("small", page, address)
        for page, address in (
            ("fleet", "/"),
            ("job", f"/jobs/{SMALL.name}"),
            ("session", f"/sessions/{template}"),
            ("incidents", "/incidents"),
            ("rules", "/rules"),
            ("channels", "/channels"),
            ("plans", "/plans"),
            ("quotas", "/quotas"),
        )
    ]
    copy_session(server.container, template, COPIES, jobs, sessions)
    copy_session(server.container, template, LONG, 1, LONG_SESSIONS)
    let_fire(server.container, COPIES, (jobs + 1) // 2, sessions + 1)
    [incident] = server.ids("/api/v1/incidents?limit=1", "incidents")
    [host] = server.ids("/api/v1/hosts?limit=1", "hosts")
    newest = server.ids(f"/api/v1/sessions?job={LONG}1&limit=2", "sessions")
    fleet = f"{jobs:,} × {sessions}"
    weighed += [
        server.weigh(fleet, page, address)
        for page, address in (
            ("fleet", "/"),
            ("fleet, 30 d", "/?range=30d"),
            ("fleet, searched and sorted", "/?range=30d&q=copied-7&sort=job"),
            ("job", f"/jobs/{COPIES}1"),
            ("session", f"/sessions/{template}"),
            ("incidents", "/incidents"),
            ("incident", f"/incidents/{incident}"),
            ("hosts", "/hosts?range=30d"),
            ("host", f"/hosts/{host}?range=30d"),
            ("report, 7 d", "/report"),
            ("report, 30 d", "/report?range=30d"),
            ("compare", f"/compare?a={newest[1]}&b={newest[0]}"),
            ("ingest", "/ingest?range=30d"),
            ("installation", "/installation"),
            ("retention", "/retention"),
            ("access", "/access"),
            ("jobs.csv", "/fleet/jobs.csv?range=30d"),
            ("incidents.csv", "/incidents.csv"),
            ("hosts.csv", "/hosts.csv?range=30d"),
            ("hosts.csv, all", "/hosts.csv?range=30d&show=all"),
            ("host: sessions.csv", f"/hosts/{host}/sessions.csv?range=30d"),
            ("report: jobs.csv", "/report/jobs.csv?range=30d"),
            ("report: figures.csv", "/report/figures.csv?range=30d"),
            ("ingest: jobs.csv", "/ingest/jobs.csv?range=30d"),
            ("installation: storage.csv", "/installation/storage.csv"),
            ("retention.csv", "/retention.csv"),
        )
    ]
    size = f"{LONG_SESSIONS:,} sessions"
    weighed.append(server.weigh(size, "job", f"/jobs/{LONG}1"))
    weighed.append(server.weigh(size, "job, 7 d", f"/jobs/{LONG}1?range=7d"))
    weighed.append(server.weigh(size, "job: sessions.csv", f"/jobs/{LONG}1/sessions.csv"))
    return weighed


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=JOBS)
    parser.add_argument("--sessions", type=int, default=SESSIONS)
    parser.add_argument("--dp", type=int, default=LARGE.sizes.dp, help="DP ranks of the large one")
    arguments = parser.parse_args()
    large = JobModel(
        Sizes(dp=arguments.dp, pp=LARGE.sizes.pp),
        microbatches=LARGE.microbatches,
        steps=LARGE.steps,
        name=LARGE.name,
    )
    # The database runs as another account than root, which may not enter every directory.
    with tempfile.TemporaryDirectory(prefix="paceline-pages-") as name:
        Path(name).chmod(0o755)
        weighed, painted = measure(Path(name), arguments.jobs, arguments.sessions, large)
    print(table(weighed))
    print()
    print(painted_table(painted))
    sys.stdout.flush()


if __name__ == "__main__":
    main()
