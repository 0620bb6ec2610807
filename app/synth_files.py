"""Synthetic sessions as files: what ``paceline synth`` leaves in a directory."""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import yaml

from app.analysis.synthesis.scenarios import SCENARIOS
from app.analysis.trace.encode import to_ndjson_gz, to_parquet
from app.analysis.trace.metadata import metadata_document
from app.errors import NotFoundError


class TraceFormat(StrEnum):
    """Formats in which a synthetic trace can be written."""

    PARQUET = "parquet"
    NDJSON = "ndjson"


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
    OSError
        The directory cannot be written to.
    """
    scenario = SCENARIOS.get(name)
    if scenario is None:
        raise NotFoundError(f"there is no scenario {name!r}; there are {', '.join(SCENARIOS)}")
    session = scenario.synthesize(seed)
    out_dir.mkdir(parents=True, exist_ok=True)
    if trace_format is TraceFormat.PARQUET:
        trace_path, encoded = out_dir / "trace.parquet", to_parquet(session.trace)
    else:
        trace_path, encoded = out_dir / "trace.ndjson.gz", to_ndjson_gz(session.trace)
    files = SyntheticFiles(trace_path, out_dir / "meta.yaml", out_dir / "truth.json")
    files.trace.write_bytes(encoded)
    document = metadata_document(session.trace.meta)
    files.meta.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
    truth = {"scenario": name, "seed": seed, **session.truth.document()}
    files.truth.write_text(json.dumps(truth, indent=2) + "\n", encoding="utf-8")
    return files
