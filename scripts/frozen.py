"""Snapshots of behavior, compared between two trees: ``python -m scripts.frozen OUT``.

Writes below OUT what users and programs see: the OpenAPI document, every page, CSV file and answer
of the API for a server with the same content in every run, reports of recorded and synthetic
traces, the schema of the database, metrics, help of every command, messages of every channel, and
tools of assistants. Two runs of the same tree write the same bytes; ``--against BEFORE`` prints the
differences from earlier snapshots, and fails where there are any.

The server is filled by `tests.support.fixed`, at a clock that stands still and with consecutive
ids; the snapshots hold names or numbers in their place.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import hashlib
import html
import io
import json
import os
import re
import sys
import tarfile
import tempfile
import time
import uuid
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Final
from urllib.parse import urljoin

import httpx
from fastapi.routing import iter_route_contexts
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import text
from typer.main import get_command

from app.analysis.synthesis.scenarios import ALL_SCENARIOS
from app.cli.commands.program import app as program
from app.incidents.channel_settings import example
from app.incidents.channels.apprise import APPRISE
from app.incidents.channels.digest import digest_note
from app.incidents.channels.kind import OutgoingMessage
from app.incidents.channels.mail import MAIL, MailConfig, compose
from app.incidents.channels.registry import KINDS
from app.incidents.text import plain_text
from app.mcp.server import make_server
from app.platform.container import Container
from app.platform.database import migrate
from app.platform.logs import log_of_a_command
from app.platform.outbound import MAX_ANSWER_BYTES, AddressGuard, Outbound, Response
from app.platform.settings import Settings
from app.run.application import create_app
from tests.support import postgres
from tests.support.alerting import LOOPBACK
from tests.support.command import paceline
from tests.support.fixed import START, Clock, consecutive_ids, engine_of, fill, settle
from tests.support.loops import in_a_loop
from tests.support.project import build
from tests.support.receiver import Receiver
from tests.support.served import client_of, served

ADDRESS: Final = "http://127.0.0.1:8765/"
SHOWN_LINES: Final = 60
LONGEST_NAME: Final = 120

UUID: Final = re.compile(
    r"(?<![0-9a-f])[0-9a-f]{8}(?P<dash>-?)(?:[0-9a-f]{4}(?P=dash)){3}[0-9a-f]{12}(?![0-9a-f])"
)
# Patterns of values that differ between two runs or two equivalent trees, and their replacements.
VARYING: Final = (
    (re.compile(r"(?<=/static/)[0-9a-f]{16}(?=/)|(?<=/api/docs/)[0-9a-f]+(?=\.css)"), "DIGEST"),
    (re.compile(r"(?<=sha256-)[\w+/]+={0,2}|(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])"), "SHA256"),
    (re.compile(r"(?<=webhook-timestamp: )\d+"), "SECONDS"),
    (re.compile(r"(?<=\bplc_)[\w-]+"), "TOKEN"),
    (re.compile(r'(?<=revision": ")\d{4}|(?<=revision )\d{4}|(?<=<span>schema )\d{4}'), "REVISION"),
    (re.compile(r"(?<=127\.0\.0\.1:)\d+"), "PORT"),
)


class Normalizer:
    """Replaces values that vary between runs.

    Parameters
    ----------
    names : mapping of str to str
        Texts that vary, with the names that replace them.
    """

    def __init__(self, names: Mapping[str, str]) -> None:
        self._names = names

    def __call__(self, content: str) -> str:
        """Return a text with names in place of ids, digests and ports.

        Ids without a name are numbered in the order in which the text mentions them.
        """
        numbers: dict[str, int] = {}

        def name_of(match: re.Match[str]) -> str:
            key = match[0].replace("-", "")
            return self._names.get(key) or f"ID-{numbers.setdefault(key, len(numbers) + 1)}"

        for varying, name in self._names.items():
            if not UUID.fullmatch(varying):
                content = content.replace(varying, name)
        content = UUID.sub(name_of, content)
        for pattern, name in VARYING:
            content = pattern.sub(name, content)
        return content


@dataclass
class Snapshots:
    """Files of normalized texts below a folder."""

    root: Path
    names: dict[str, str] = field(default_factory=dict)

    def write(self, path: str, content: str) -> None:
        """Write a normalized text."""
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        normalized = Normalizer(self.names)(content)
        file.write_text(normalized if normalized.endswith("\n") else normalized + "\n", "utf-8")

    def write_json(self, path: str, document: object, *, sort_keys: bool = False) -> None:
        """Write a document."""
        self.write(path, json.dumps(document, indent=1, sort_keys=sort_keys, ensure_ascii=False))


# ---- command line and reports ------------------------------------------------------------------


def freeze_help(out: Snapshots) -> None:
    """Write the help of every command."""

    def walk(command: Any, path: tuple[str, ...]) -> None:  # noqa: ANN401 - typer has a click of its own
        shown = paceline(*path, "--help")
        out.write(f"{'-'.join(('paceline', *path))}.txt", shown.stdout + shown.stderr)
        for name, below in sorted(getattr(command, "commands", {}).items()):
            walk(below, (*path, name))

    walk(get_command(program), ())


def freeze_reports(out: Snapshots) -> None:
    """Write the output of `analyze`, `hang` and `pulse detect` on recorded and synthetic files."""
    reference = os.environ.get("PACELINE_REFERENCE_DATA")
    if reference is None:
        raise SystemExit("PACELINE_REFERENCE_DATA names no folder of published traces")
    golden = Path(reference).resolve()
    out.names[str(golden.parent)] = "DATA"
    for trace in sorted(golden.glob("trace-*.parquet")):
        meta = golden / f"{trace.stem.replace('trace', 'meta')}.yaml"
        _run(out, f"golden/{trace.stem}", "analyze", trace, "--meta", meta)
    for name in ("real-jobs", "kineto-pipelining", "megascan"):
        _of_folder(out, golden.parent / name, ("analyze",))
    for case in sorted((golden.parent / "flight-recorder").glob("*/")):
        _run(out, f"flight-recorder/{case.name}", "hang", case)
    for case in sorted((golden.parent / "public-cases").glob("*/")):
        # The README of a case contains its command.
        command = re.search(
            r"paceline (analyze|hang|pulse detect)", (case / "README.md").read_text()
        )
        if command is not None:
            _of_folder(out, case, tuple(command[1].split()))
    with tempfile.TemporaryDirectory() as folder:
        out.names[folder] = "FOLDER"
        for name in ALL_SCENARIOS:
            made = Path(folder) / name
            done = paceline("synth", name, "--out", made)
            out.write(f"synthetic/{name}/synth.txt", done.stdout + done.stderr)
            for kind in ("meta.yaml", "truth.json"):
                out.write(f"synthetic/{name}/{kind}", (made / kind).read_text())
            trace, meta = made / "trace.parquet", made / "meta.yaml"
            _run(out, f"synthetic/{name}/report", "analyze", trace, "--meta", meta)


def _of_folder(out: Snapshots, case: Path, command: Sequence[str]) -> None:
    """Run a command on each folder and file of a case, and on the files of all ranks together."""
    inputs = [
        path
        for path in sorted(case.iterdir())
        if path.name not in {"README.md", "check.py", "truth.json", "meta.yaml"}
    ]
    ranks = [path for path in inputs if re.match(r"rank\d", path.name)]
    if len(ranks) > 1:
        inputs = [case, *(path for path in inputs if path not in ranks)]
    meta = ("--meta", case / "meta.yaml") if (case / "meta.yaml").exists() else ()
    for path in inputs:
        # The folder of ranks' files may hold a README, which is no trace.
        with tempfile.TemporaryDirectory() as folder:
            trace = path
            if path == case:
                out.names[folder] = "FOLDER"
                trace = Path(folder)
                for rank in ranks:
                    (trace / rank.name).symlink_to(rank)
            name = case.name if path == case else f"{case.name}/{path.name}"
            _run(out, name, *command, trace, *meta)


def _run(out: Snapshots, name: str, *command: str | Path) -> None:
    """Write the output of a command as JSON, or the reason of its failure."""
    done = paceline(*command, "--json")
    if done.returncode == 0:
        out.write_json(f"{name}.json", json.loads(done.stdout))
        if command[0] == "analyze":
            plain = paceline(*command)
            out.write(f"{name}.txt", plain.stdout + plain.stderr)
    else:
        out.write(f"{name}.failed.txt", f"exit {done.returncode}\n{done.stderr}")


# ---- schema ------------------------------------------------------------------------------------

SCHEMA: Final = {
    "columns": """SELECT c.relname, a.attname, format_type(a.atttypid, a.atttypmod),
        CASE WHEN a.attnotnull THEN 'NOT NULL' END, a.attidentity, a.attgenerated,
        pg_get_expr(d.adbin, d.adrelid), a.attstorage, a.attcompression, co.collname
        FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
        LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
        LEFT JOIN pg_collation co ON co.oid = a.attcollation
        WHERE c.relkind IN ('r', 'p', 'v', 'm') AND a.attnum > 0 AND NOT a.attisdropped
        AND c.relnamespace = 'public'::regnamespace""",
    "relations": """SELECT c.relkind, c.relname, c.reloptions, c.relpersistence, c.relrowsecurity,
        c.relforcerowsecurity, c.relreplident, obj_description(c.oid)
        FROM pg_class c WHERE c.relnamespace = 'public'::regnamespace""",
    "indexes": """SELECT c.relname, pg_get_indexdef(i.indexrelid), i.indisvalid FROM pg_index i
        JOIN pg_class c ON c.oid = i.indrelid WHERE c.relnamespace = 'public'::regnamespace""",
    "constraints": """SELECT conrelid::regclass, conname, pg_get_constraintdef(oid), convalidated
        FROM pg_constraint WHERE connamespace = 'public'::regnamespace AND contype <> 'n'""",
    "triggers": """SELECT tgrelid::regclass, pg_get_triggerdef(oid), tgenabled
        FROM pg_trigger WHERE NOT tgisinternal""",
    "functions": """SELECT pg_get_functiondef(oid) FROM pg_proc
        WHERE pronamespace = 'public'::regnamespace AND prokind IN ('f', 'p')""",
    "types": """SELECT t.typname, array_agg(e.enumlabel ORDER BY e.enumsortorder)
        FROM pg_enum e JOIN pg_type t ON t.oid = e.enumtypid GROUP BY t.typname""",
    "sequences": """SELECT sequencename, data_type, start_value, increment_by, max_value, cycle
        FROM pg_sequences WHERE schemaname = 'public'""",
    "policies": "SELECT tablename, policyname, cmd, qual, with_check FROM pg_policies",
    "extensions": "SELECT extname FROM pg_extension",
    "statistics": "SELECT pg_get_statisticsobjdef(oid) FROM pg_statistic_ext",
}


def freeze_schema(out: Snapshots) -> None:
    """Write the schema of a migrated database: tables, columns by name, and all that they own."""
    with (
        _server() as server_url,
        postgres.clone(server_url) as url,
        engine_of(url) as engine,
        engine.connect() as connection,
    ):
        for name, query in SCHEMA.items():
            rows = connection.execute(text(query)).all()
            lines = {
                " | ".join("" if value is None else str(value) for value in row) for row in rows
            }
            out.write(
                f"{name}.txt",
                "\n".join(sorted(line for line in lines if "alembic_version" not in line)),
            )


@contextlib.contextmanager
def _server() -> Iterator[str]:
    server, directory = postgres.start_server()
    try:
        yield server.url
    finally:
        postgres.stop_server(server, directory)


# ---- a server with content ---------------------------------------------------------------------


# Query parameters that some pages need to show any content.
QUERIES: Final = {
    "/api/v1/sessions/{session}/timeline": "?step=14",
    "/compare": "?a={session}&b={other}",
    "/compare/times": "?job={job}",
    "/plans": "?of={plan}",
    "/api/v1/jobs/{job}/tp/{group}/plan": "?attempt=1&wait_s=0",
    "/api/v1/search": "?q=dense",
}
# Paths that are left out: static files, event streams, and the built documentation and client;
# metrics have their own part.
NO_ANSWERS: Final = re.compile(r"/(static|docs|client|metrics|api/docs/.*)(/|$)|.*/events$")
LINK: Final = re.compile(r'(?:href|action|data-\w+|src)="(/[^"#]*)')
HEADERS: Final = ("content-type", "content-disposition", "cache-control", "location", "link")


def freeze_server(out: Snapshots) -> None:
    """Write OpenAPI, pages, files, answers, metrics and messages of a server with content."""
    with (
        _server() as server_url,
        postgres.clone(server_url, template="template0") as url,
        tempfile.TemporaryDirectory() as folder,
        consecutive_ids(),
        engine_of(url) as engine,
    ):
        clock = Clock(engine)
        migrate.upgrade(url)
        settings = Settings(
            database_url=url,
            data_dir=Path(folder) / "data",
            external_url=ADDRESS,
            alert_allowed_networks=LOOPBACK,
            instance_name="frozen",
        )
        out.names[folder] = "FOLDER"
        container = build(settings)
        try:
            with (
                Receiver() as receiver,
                served(container) as address,
                client_of(address) as client,
            ):
                things = fill(container, client, clock, receiver)
                out.names |= {
                    value.replace("-", ""): f"{{{name}}}"
                    for name, value in things.items()
                    if UUID.fullmatch(value)
                }
                out.write_json("messages/delivered.json", [got.json for got in receiver.got])
                settle(container, clock)
                application = create_app(container)
                out.write_json("openapi.json", application.openapi(), sort_keys=True)
                routes = sorted(
                    (method, context.path or "")
                    for context in iter_route_contexts(application.routes)
                    for method in context.methods or ()
                )
                freeze_answers(
                    out, client, [path for method, path in routes if method == "GET"], things
                )
                freeze_metrics(out, client.get("/metrics").text)
                freeze_refusals(out, client, routes, things)
            freeze_messages(out, container)
        finally:
            container.close()


def freeze_answers(
    out: Snapshots, client: httpx.Client, paths: Sequence[str], things: Mapping[str, str]
) -> None:
    """Write the answer of every route, and of every address that a page links to."""
    addresses = [
        _address(path + QUERIES.get(path, ""), things)
        for path in paths
        if not NO_ANSWERS.match(path) and "{name}" not in path and ":path}" not in path
    ]
    linked: set[str] = set()
    for address in addresses:
        answer = client.get(address)
        _write_answer(out, "http", answer)
        if answer.headers.get("content-type", "").startswith("text/html"):
            linked |= {urljoin(address, html.unescape(link)) for link in LINK.findall(answer.text)}
    for address in sorted(linked - set(addresses)):
        if not NO_ANSWERS.match(address):
            _write_answer(out, "http", client.get(address))
    reached = {_route_of(address, paths) for address in (*addresses, *linked)}
    out.write("http/not-reached.txt", "\n".join(sorted(set(paths) - reached)))


def freeze_refusals(
    out: Snapshots,
    client: httpx.Client,
    routes: Sequence[tuple[str, str]],
    things: Mapping[str, str],
) -> None:
    """Write the answers to reads of unknown ids and to writes of empty documents."""
    for method, path in routes:
        if method == "GET" and "{" in path and not NO_ANSWERS.match(path):
            _write_answer(out, "unknown", client.get(_address(path, {})))
        elif method in {"POST", "PUT", "PATCH"}:
            _write_answer(out, "written", client.request(method, _address(path, things), json={}))


def _address(path: str, things: Mapping[str, str]) -> str:
    """Return a route's path with ids of existing objects, else with an unknown id."""
    return re.sub(r"\{(\w+)\}", lambda match: things.get(match[1], str(uuid.UUID(int=0))), path)


def _route_of(address: str, paths: Sequence[str]) -> str:
    """Return the route of an address: the one with the fewest parameters that matches."""
    path = address.partition("?")[0]
    fitting = (
        route
        for route in paths
        if re.fullmatch(re.sub(r"\\{\w+\\}", "[^/]+", re.escape(route)), path)
    )
    return min(fitting, key=lambda route: route.count("{"), default="")


def _write_answer(out: Snapshots, folder: str, answer: httpx.Response) -> None:
    """Write status, some headers and content of an answer; of an archive, its members."""
    address = answer.request.url.raw_path.decode()
    head = [f"{answer.status_code} {answer.request.method} {address}"]
    head += [f"{name}: {answer.headers[name]}" for name in HEADERS if name in answer.headers]
    method = answer.request.method.replace("GET", "")
    name = (
        re.sub(r"[^\w.{}=-]+", "_", method + Normalizer(out.names)(address)).strip("_") or "index"
    )
    if len(name) > LONGEST_NAME:
        name = f"{name[:LONGEST_NAME]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
    # The file name is numbered if two addresses differ only in an unnamed id.
    numbered = (f"{folder}/{name}{end}.txt" for end in ("", *(f"-{n}" for n in range(2, 1000))))
    kind = answer.headers.get("content-type", "").partition(";")[0]
    out.write(
        next(path for path in numbered if not (out.root / path).exists()),
        "\n".join([*head, "", _content(answer.content, kind)]),
    )


def _content(content: bytes, kind: str) -> str:
    if kind in {"application/zip", "application/x-tar"}:
        return "\n".join(f"-- {name}\n{_content(data, '')}" for name, data in _members(content))
    try:
        plain = content.decode()
    except UnicodeDecodeError:
        return f"{len(content)} bytes, SHA-256 {hashlib.sha256(content).hexdigest()[:16]}"
    with contextlib.suppress(ValueError):
        return json.dumps(json.loads(plain), indent=1, ensure_ascii=False)
    return plain


def _members(archive: bytes) -> list[tuple[str, bytes]]:
    if zipfile.is_zipfile(io.BytesIO(archive)):
        with zipfile.ZipFile(io.BytesIO(archive)) as opened:
            return [(name, opened.read(name)) for name in opened.namelist()]
    with tarfile.open(fileobj=io.BytesIO(archive)) as opened:
        return [
            (member.name, file.read())
            for member in opened.getmembers()
            if (file := opened.extractfile(member)) is not None
        ]


def freeze_metrics(out: Snapshots, exposition: str) -> None:
    """Write names, types, help and labels of metrics."""
    lines = []
    for family in text_string_to_metric_families(exposition):
        lines += [
            f"# HELP {family.name} {family.documentation}",
            f"# TYPE {family.name} {family.type}",
        ]
        lines += sorted(
            {
                f"{sample.name} {json.dumps(dict(sorted(sample.labels.items())))}"
                for sample in family.samples
            }
        )
    out.write("metrics.txt", "\n".join(lines))


# ---- messages and tools ------------------------------------------------------------------------

CONFIGURATIONS: Final[Mapping[str, dict[str, Any]]] = {"pagerduty": {"routing_key": "key"}}


class Kept(Outbound):
    """Records requests instead of sending them."""

    def __init__(self) -> None:
        super().__init__(AddressGuard(()), 10.0)
        self.requests: list[str] = []

    def request(
        self,
        method: str,
        url: str,
        body: bytes | None,
        headers: Mapping[str, str],
        *,
        max_bytes: int = MAX_ANSWER_BYTES,
    ) -> Response:
        """Record a request, and return a success."""
        del max_bytes
        head = [f"{method} {url}", *(f"{name}: {value}" for name, value in headers.items())]
        content = (body or b"").decode()
        with contextlib.suppress(ValueError):
            content = json.dumps(json.loads(content), indent=1, ensure_ascii=False)
        self.requests.append("\n".join([*head, "", content]))
        return Response(200, {}, b'{"code": 0}')


def freeze_messages(out: Snapshots, container: Container) -> None:
    """Write the messages of every kind of channel for the example and for a digest."""
    message = example(container, "ops", START, ADDRESS)
    for name, kind in KINDS.items():
        if kind is APPRISE:
            # The channel passes a title and this text to its library.
            out.write(f"messages/{name}.txt", f"{message.title}\n\n{plain_text(message)}")
        elif kind is MAIL:
            config = MailConfig(
                host="smtp.example.com",
                sender="paceline@example.com",
                recipients=("a@example.com",),
            )
            mail = compose(config, message, None)
            parts = [
                f"{header}: {value}" for header, value in mail.items() if header != "Content-Type"
            ]
            parts += [str(part.get_content()) for part in mail.iter_parts()]
            out.write(f"messages/{name}.txt", "\n".join(parts))
        else:
            given = CONFIGURATIONS.get(name, {"url": "https://hooks.example.com/x"})
            with Kept() as kept:
                config = kind.config.validate_python(given)
                kind.send(config, OutgoingMessage(message, None, kept))
                if kind.tell is not None:
                    kind.tell(config, digest_note(message), kept)
                out.write(f"messages/{name}.txt", "\n\n".join(kept.requests))


def freeze_tools(out: Snapshots) -> None:
    """Write the tools of assistants, with their schemas."""

    async def listed() -> list[dict[str, Any]]:
        async with httpx.AsyncClient(base_url=ADDRESS) as client:
            tools = await make_server(client, ADDRESS, may_acknowledge=True).list_tools()
        return [tool.model_dump(mode="json") for tool in tools]

    out.write_json("tools.json", in_a_loop(listed))


# ---- the command -------------------------------------------------------------------------------


def differences(before: Path, after: Path) -> list[str]:
    """Return the differences of two folders, a text for each file with its first lines."""

    def files(root: Path) -> dict[str, Path]:
        return {
            str(path.relative_to(root)): path for path in sorted(root.rglob("*")) if path.is_file()
        }

    old, new = files(before), files(after)
    texts = []
    for name in sorted(old.keys() | new.keys()):
        if name not in new:
            texts.append(f"{name}: gone")
        elif name not in old:
            texts.append(f"{name}: new")
        elif old[name].read_bytes() != new[name].read_bytes():
            changed = difflib.unified_diff(
                old[name].read_text("utf-8").splitlines(),
                new[name].read_text("utf-8").splitlines(),
                f"before/{name}",
                f"after/{name}",
                n=1,
                lineterm="",
            )
            shown = list(islice(changed, SHOWN_LINES + 1))
            more = ["… and more"] if len(shown) > SHOWN_LINES else []
            texts.append("\n".join([f"{name}: changed", *shown[:SHOWN_LINES], *more]))
    return texts


PARTS: Final[Mapping[str, Callable[[Snapshots], None]]] = {
    "help": freeze_help,
    "tools": freeze_tools,
    "reports": freeze_reports,
    "schema": freeze_schema,
    "server": freeze_server,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Write snapshots, compare them with earlier ones, and return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition(":")[0])
    parser.add_argument("out", type=Path, help="folder, which is made")
    parser.add_argument("--against", type=Path, metavar="BEFORE", help="earlier snapshots")
    parser.add_argument("--part", action="append", choices=PARTS, help="only this; repeatable")
    given = parser.parse_args(arguments)
    if given.out.exists():
        parser.error(f"{given.out} exists")
    log_of_a_command(json=False, level="error")
    os.environ |= {"COLUMNS": "100", "LINES": "50", "NO_COLOR": "1", "TERM": "dumb"}
    changed = 0
    for part in given.part or PARTS:
        began_s = time.monotonic()
        PARTS[part](Snapshots(given.out / part))
        print(f"{part}: {time.monotonic() - began_s:.0f} s", file=sys.stderr)
        if given.against is not None:
            changes = differences(given.against / part, given.out / part)
            changed += len(changes)
            for difference in changes:
                print(f"{part}/{difference}")
    if given.against is not None:
        print(f"{changed} files differ")
    return int(changed > 0)


if __name__ == "__main__":
    sys.exit(main())
