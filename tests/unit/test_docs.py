"""The pages for users document all commands, options, routes, codes and settings."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from typing import Any, Final

import pytest
from typer.testing import CliRunner

from app.analysis.diagnosis.causes.registry import KINDS
from app.analysis.synthesis.scenarios import ALL_SCENARIOS, SCENARIOS
from app.analysis.trace import decode, metadata
from app.analysis.trace.formats.kind import TraceFormat
from app.analysis.trace.formats.registry import FORMATS, WRITERS
from app.analysis.trace.model import KNOWN_OP_TYPES, OP_TYPE_ALIASES
from app.analysis.trace.parallelism import layers_per_stage
from app.bootstrap import build
from app.cli.commands.program import app
from app.jobs.connect import WAYS, Target, Way
from app.platform.settings import Settings
from app.run.application import create_app
from app.web.problems import PROBLEMS

ROOT: Final = Path(__file__).parents[2]
DOCS: Final = ROOT / "docs"


def codes_in(folder: str, pattern: str) -> set[str]:
    return {
        code
        for path in (ROOT / folder).rglob("*.py")
        for code in re.findall(pattern, path.read_text())
    }


def test_every_setting_is_on_the_page_of_operations() -> None:
    page = (DOCS / "operations.md").read_text()
    named = set(re.findall(r"`(PACELINE_[A-Z_]+)`", page))

    assert {f"PACELINE_{name.upper()}" for name in Settings.model_fields} <= named


@pytest.fixture(scope="module")
def openapi() -> dict[str, Any]:
    # The container connects to nothing before it is used.
    container = build(Settings(database_url="postgresql+psycopg://unknown@127.0.0.1:1/none"))
    try:
        return create_app(container).openapi()
    finally:
        container.close()


@pytest.mark.slow
def test_the_openapi_document_has_every_schema_that_it_refers_to(openapi: dict[str, Any]) -> None:
    path = "/api/v1/sessions/{session}/report"
    answer = openapi["paths"][path]["get"]["responses"]["200"]["content"]["application/json"]
    assert answer["schema"] == {"$ref": "#/components/schemas/Report"}
    referred = set(re.findall(r'"#/components/schemas/([^"]+)"', json.dumps(openapi)))
    assert "Report.NamedCause" in referred
    assert referred <= set(openapi["components"]["schemas"])


@pytest.mark.slow
def test_every_route_of_the_api_is_on_its_page(openapi: dict[str, Any]) -> None:
    page = (DOCS / "http-api.md").read_text()
    paths = set(openapi["paths"])

    assert "/api/v1/jobs/{job}/sessions" in paths
    assert [path for path in sorted(paths) if path not in page] == []


def test_every_problem_is_on_the_page_of_the_api() -> None:
    page = (DOCS / "http-api.md").read_text()
    families = tuple(re.findall(r"`(\w+\.)…`", page))

    assert [
        code for code in PROBLEMS if f"`{code}`" not in page and not code.startswith(families)
    ] == []


@pytest.mark.parametrize("folder", ["app/sessions", "app/platform/tasks", "app/analysis/replay"])
def test_every_code_of_a_use_case_is_on_a_page(folder: str) -> None:
    page = (DOCS / "http-api.md").read_text() + (DOCS / "trace-format.md").read_text()
    reasons = codes_in(folder, r'"((?:trace|task|report)\.[a-z_]+)"')

    assert reasons
    assert [code for code in sorted(reasons) if f"`{code}`" not in page] == []


def test_every_refusal_of_a_trace_is_on_the_page_of_the_format() -> None:
    page = (DOCS / "trace-format.md").read_text()
    # The decoder's docstring lists its codes, which the decoder's tests check.
    listed = set(re.findall(r"``((?:trace|body)\.[a-z_]+)``", decode.__doc__ or ""))
    raised = codes_in("app/analysis/trace", r'code="((?:trace|body|metadata)\.[a-z_]+)"')
    metadata_codes = set(re.findall(r"``(metadata\.[a-z_]+)``", metadata.__doc__ or ""))

    # This code is for stored blobs, not for bodies.
    codes = (listed | raised | metadata_codes) - {"trace.unreadable_blob"}
    assert len(codes) > 30
    assert [code for code in sorted(codes) if f"`{code}`" not in page] == []


@pytest.mark.parametrize("known", FORMATS.values(), ids=FORMATS)
def test_every_trace_format_has_a_row_and_a_section_on_its_page(known: TraceFormat) -> None:
    page = (DOCS / "trace-format.md").read_text()
    row = next((line for line in page.splitlines() if line.startswith(f"| [{known.title}](#")), "")

    for said in (known.name, *known.media_types, *known.suffixes):
        assert f"`{said}`" in row, said
    anchor = re.findall(r"\]\(#([a-z-]+)\)", row)[0]
    headings = re.findall(r"^### (.*)$", page, re.MULTILINE)
    assert anchor in {re.sub(r"[^a-z -]", "", text.lower()).replace(" ", "-") for text in headings}


def test_every_format_that_synth_writes_is_on_the_page_and_in_its_help() -> None:
    page = (DOCS / "trace-format.md").read_text()
    help_text = CliRunner().invoke(app, ["synth", "--help"], env={"COLUMNS": "400"}).stdout

    for name in WRITERS:
        assert f"`{name}`" in page, name
        assert re.search(rf"\b{name}\b", help_text), name


def test_every_name_of_an_operation_type_is_on_the_page_of_the_format() -> None:
    page = (DOCS / "trace-format.md").read_text()

    for name in (*KNOWN_OP_TYPES, *OP_TYPE_ALIASES):
        assert f"`{name}`" in page, name


def test_the_metadata_on_the_page_of_the_format_are_understood() -> None:
    page = (DOCS / "trace-format.md").read_text()
    written = re.search(r"```yaml\n(trial_name.*?)```", page, re.DOTALL)
    assert written

    meta = metadata.load_metadata(written[1])
    sizes = meta.sizes
    assert layers_per_stage(dict(meta.extra), sizes.pp) == (20, 20, 20, 20)
    # The format of a synthetic session.
    session = SCENARIOS["sequence-lengths"].synthesize(0)
    for lengths, dp in (
        (meta.extra["sequence_lengths"], sizes.dp),
        (session.trace.meta.extra["sequence_lengths"], session.job.sizes.dp),
    ):
        lanes = next(iter(lengths.values()))
        assert len(lanes) == dp
        assert all(isinstance(s, int) for lane in lanes for microbatch in lane for s in microbatch)


def test_every_synthetic_scenario_is_on_the_page_of_the_format() -> None:
    page = (DOCS / "trace-format.md").read_text()

    assert [name for name in ALL_SCENARIOS if f"`{name}`" not in page] == []


@pytest.mark.parametrize("page", ["causes.md", "diagnosis.md"])
def test_every_cause_has_a_section_on_what_it_is_and_on_what_to_do(page: str) -> None:
    headings = set(re.findall(r"^##+ (.*)$", (DOCS / page).read_text(), re.MULTILINE))

    assert [kind.title for kind in KINDS.values() if kind.title not in headings] == []


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_every_way_to_connect_has_a_section_with_its_lines(way: Way) -> None:
    page = (DOCS / "connecting.md").read_text()

    assert f"### {way.title}\n" in page
    fences = re.findall(r"```(\w+)\n(.*?)\n```", page, re.DOTALL)
    # Compared as syntax trees, because the page's Python is formatted.
    python = {ast.dump(ast.parse(code)) for kind, code in fences if kind == "python"}
    others = {code for kind, code in fences if kind != "python"}
    for block in way.blocks(Target("http://paceline:8765", "llama-70b")):
        assert block in others or ast.dump(ast.parse(block)) in python


def test_every_page_is_in_the_contents_of_the_site() -> None:
    listed = re.findall(r": ([a-z-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)

    assert sorted(listed) == sorted(path.name for path in DOCS.glob("*.md"))


def test_links_between_the_pages_lead_somewhere() -> None:
    pages = [*DOCS.glob("*.md"), *ROOT.glob("*.md"), *(ROOT / "requirements").glob("*.md")]
    missing = [
        (page.name, target)
        for page in pages
        for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text())
        if not (page.parent / target).exists()
    ]

    assert missing == []
