"""`paceline synth`: write synthetic sessions with their metadata and ground truth."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from app.analysis.synthesis.fleet import plan_fleet
from app.analysis.synthesis.host_sessions import HostSession
from app.analysis.synthesis.scenarios import ALL_SCENARIOS
from app.analysis.synthesis.synthesize import SyntheticSession
from app.analysis.trace.formats.kind import Writer
from app.analysis.trace.formats.registry import WRITERS
from app.analysis.trace.metadata import metadata_document
from app.cli.files import writing
from app.errors import NotFoundError

DEFAULT_WRITER: Final = WRITERS["parquet"]


@dataclass(frozen=True, slots=True)
class SyntheticFiles:
    """Paths of one synthetic session."""

    trace: Path
    meta: Path
    truth: Path


def write_scenario(
    name: str, out_dir: Path, *, seed: int, writer: Writer = DEFAULT_WRITER
) -> SyntheticFiles:
    """Write trace, ``meta.yaml`` and ``truth.json`` of a scenario, replacing earlier ones."""
    scenario = ALL_SCENARIOS.get(name)
    if scenario is None:
        names = ", ".join(ALL_SCENARIOS)
        raise NotFoundError(f"there is no scenario {name!r}; there are {names}")
    session = scenario.synthesize(seed)
    return _write(session, out_dir, writer, {"scenario": name, "seed": seed})


def write_fleet(
    jobs: int, out_dir: Path, *, seed: int, writer: Writer = DEFAULT_WRITER
) -> Iterator[SyntheticFiles]:
    """Write a session of each job of a fleet to its own folder, and ``fleet.json`` at the end.

    Yields
    ------
    SyntheticFiles
        Paths of each session, as soon as its files are written.

    Raises
    ------
    FileError
        The directory cannot be written to.
    """
    listed = []
    for member in plan_fleet(jobs, seed):
        session = member.synthesize()
        about = {"job": member.name, "seed": member.seed}
        yield _write(session, out_dir / member.name, writer, about)
        listed.append(
            {
                **about,
                "causes": list(session.truth.causes),
                "slowdown": session.truth.slowdown,
                "world": session.job.sizes.world,
            }
        )
    fleet = {"schema": "paceline.fleet/1", "seed": seed, "jobs": listed}
    with writing(out_dir):
        (out_dir / "fleet.json").write_text(json.dumps(fleet, indent=2) + "\n", encoding="utf-8")


def _write(
    session: SyntheticSession | HostSession, out_dir: Path, writer: Writer, about: dict[str, Any]
) -> SyntheticFiles:
    files = SyntheticFiles(
        out_dir / writer.file_name, out_dir / "meta.yaml", out_dir / "truth.json"
    )
    meta = yaml.safe_dump(metadata_document(session.trace.meta), sort_keys=False)
    truth = json.dumps({**about, **session.truth.document()}, indent=2)
    with writing(out_dir):
        out_dir.mkdir(parents=True, exist_ok=True)
        files.trace.write_bytes(writer.encode(session.trace))
        files.meta.write_text(meta, encoding="utf-8")
        files.truth.write_text(truth + "\n", encoding="utf-8")
    return files
