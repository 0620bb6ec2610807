"""Synthetic sessions as files: what ``paceline synth`` leaves in a directory."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

import yaml
import zstandard

from app.analysis.synthesis.fleet.draw import plan_fleet
from app.analysis.synthesis.recording.published import to_published_parquet
from app.analysis.synthesis.scenarios import ALL_SCENARIOS
from app.analysis.synthesis.synthesize import SyntheticSession
from app.analysis.trace.encode import to_ndjson_gz, to_parquet
from app.analysis.trace.metadata import metadata_document
from app.analysis.trace.model import Trace
from app.cli.files import writing
from app.errors import NotFoundError


class TraceFormat(StrEnum):
    """Formats in which a synthetic trace can be written."""

    PARQUET = "parquet"
    PUBLISHED = "published"
    NDJSON = "ndjson"
    NDJSON_ZSTD = "ndjson-zstd"


@dataclass(frozen=True, slots=True)
class SyntheticFiles:
    """Where the files of one synthetic session are."""

    trace: Path
    meta: Path
    truth: Path


def write_scenario(
    name: str, out_dir: Path, *, seed: int, trace_format: TraceFormat = TraceFormat.PARQUET
) -> SyntheticFiles:
    """Write trace, ``meta.yaml`` and ``truth.json`` of a scenario, replacing earlier ones.

    Raises
    ------
    NotFoundError
        There is no scenario of this name.
    FileError
        The directory cannot be written to.
    """
    scenario = ALL_SCENARIOS.get(name)
    if scenario is None:
        names = ", ".join(ALL_SCENARIOS)
        raise NotFoundError(f"there is no scenario {name!r}; there are {names}")
    session = scenario.synthesize(seed)
    return _write(session, out_dir, trace_format, {"scenario": name, "seed": seed})


def write_fleet(
    jobs: int, out_dir: Path, *, seed: int, trace_format: TraceFormat = TraceFormat.PARQUET
) -> Iterator[SyntheticFiles]:
    """Write a session of each job of a fleet to a folder of its own, and ``fleet.json`` at the end.

    Yields
    ------
    SyntheticFiles
        Of each job, as soon as they are written.

    Raises
    ------
    FileError
        The directory cannot be written to.
    """
    listed = []
    for member in plan_fleet(jobs, seed):
        session = member.synthesize()
        about = {"job": member.name, "seed": member.seed}
        yield _write(session, out_dir / member.name, trace_format, about)
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


def _ndjson_zstd(trace: Trace) -> bytes:
    return zstandard.ZstdCompressor().compress(gzip.decompress(to_ndjson_gz(trace)))


# Name of the trace's file, and what is written to it.
_FORMATS: Final[Mapping[TraceFormat, tuple[str, Callable[[Trace], bytes]]]] = {
    TraceFormat.PARQUET: ("trace.parquet", to_parquet),
    TraceFormat.PUBLISHED: ("trace.parquet", to_published_parquet),
    TraceFormat.NDJSON: ("trace.ndjson.gz", to_ndjson_gz),
    TraceFormat.NDJSON_ZSTD: ("trace.ndjson.zst", _ndjson_zstd),
}


def _write(
    session: SyntheticSession, out_dir: Path, trace_format: TraceFormat, about: dict[str, Any]
) -> SyntheticFiles:
    trace_name, encode = _FORMATS[trace_format]
    files = SyntheticFiles(out_dir / trace_name, out_dir / "meta.yaml", out_dir / "truth.json")
    meta = yaml.safe_dump(metadata_document(session.trace.meta), sort_keys=False)
    truth = json.dumps({**about, **session.truth.document()}, indent=2)
    with writing(out_dir):
        out_dir.mkdir(parents=True, exist_ok=True)
        files.trace.write_bytes(encode(session.trace))
        files.meta.write_text(meta, encoding="utf-8")
        files.truth.write_text(truth + "\n", encoding="utf-8")
    return files
