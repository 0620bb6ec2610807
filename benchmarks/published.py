"""Times of our report and of the published analyzer, on the same file in the same run.

The checkout of the analyzer is an argument; its interpreter needs the analyzer's requirements, with
pandas 2, because it writes into arrays that pandas 3 makes read-only. Whole processes are compared,
because users run them: the analyzer's main program, and with it the two programs for M_S and M_W,
which read the files of the first; our report contains all of these values. Then functions are
compared in processes that have run them before: the analyzer's main function, and with it the two
others, and our report, from the file to the result, without writing files. M_S and M_W read the
files that the whole processes have written.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import yaml

from app.analysis.replay.engine.executors import warm_up
from app.analysis.trace.metadata import metadata_document
from benchmarks.analysis import report_of
from benchmarks.support.measuring import Pairs, time_pairs
from benchmarks.traces import BenchTrace

_PAIRS: Final = 3
_AT_LEAST_S: Final = 30.0
_TRIAL: Final = "bench"
_SHOWN_CHARS: Final = 2000

_MAIN: Final = "main"
_ALL: Final = "all"

# Program for the analyzer's interpreter: it calls a function of the analyzer for each line that it
# reads, and prints the time; the analyzer's log goes to standard error.
_DRIVER: Final = f"""
import json
import sys
import yaml
from analyzer import compute_ms, compute_mw
from analyzer.metatypes import JobMeta
from analyzer.wia import WhatIfAnalyzer
meta, trace, directory, result = sys.argv[1:]
for line in sys.stdin:
    with open(meta) as file:
        job = JobMeta(**yaml.safe_load(file))
    WhatIfAnalyzer(trace, root=None, steps=None).analyze(job)
    for program in (compute_ms, compute_mw) if line.strip() == "{_ALL}" else ():
        with open(result) as file:
            program.work(directory, job.trial_name, json.load(file))
    print("done", flush=True)
"""


@dataclass(frozen=True, slots=True)
class _Published:
    """The analyzer with one trace; it writes its files into `directory`."""

    checkout: Path
    python: str
    trace: BenchTrace
    directory: Path

    @property
    def meta(self) -> Path:
        return self.directory / "meta.yaml"

    @property
    def result(self) -> Path:
        return self.directory / f"{_TRIAL}.json"

    @property
    def environment(self) -> dict[str, str]:
        # The analyzer's modules import each other by two different paths.
        folders = (self.checkout, self.checkout / "analyzer")
        return {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, folders))}

    def run_main(self) -> None:
        self._run("wia", "--metadata", self.meta, "--trace", self.trace.path)

    def run_all(self) -> None:
        self.run_main()
        for program in ("compute_ms", "compute_mw"):
            self._run(program, "--trial", _TRIAL, "--analysis-result", self.result)

    def _run(self, program: str, *arguments: str | Path) -> None:
        script = self.checkout / "analyzer" / f"{program}.py"
        folders = ("--dump-dir", self.directory, "--root", self.directory)
        _run([self.python, script, *arguments, *folders], self.environment)


def measure_published(checkout: Path, python: str, traces: list[BenchTrace]) -> list[str]:
    """Return lines for each trace with the times of both programs and the speed-up."""
    lines = []
    for trace in traces:
        with tempfile.TemporaryDirectory(prefix="paceline-bench-") as directory:
            analyzer = _Published(checkout.resolve(), python, trace, Path(directory))
            analyzer.meta.write_text(yaml.safe_dump(_published_keys(trace)), encoding="utf-8")
            for where, (main, everything) in (
                ("processes", _whole_processes(analyzer)),
                ("in process", _in_process(analyzer)),
            ):
                lines += [
                    _line(trace, f"{where}, main", main),
                    _line(trace, f"{where}, with M_S and M_W", everything),
                ]
    return lines


def _whole_processes(analyzer: _Published) -> tuple[Pairs, Pairs]:
    command: list[str | Path] = [
        sys.executable,
        "-m",
        "app.cli.main",
        "analyze",
        analyzer.trace.path,
    ]
    command += ["--meta", analyzer.meta, "--json"]

    def ours(_: int) -> None:
        _run(command, dict(os.environ))

    return (
        time_pairs(lambda _: analyzer.run_main(), ours, pairs=_PAIRS, at_least_s=_AT_LEAST_S),
        time_pairs(lambda _: analyzer.run_all(), ours, pairs=_PAIRS, at_least_s=_AT_LEAST_S),
    )


def _in_process(analyzer: _Published) -> tuple[Pairs, Pairs]:
    """Time the analyzer's main function, and all three functions, whose input files exist."""
    warm_up()
    arguments = (analyzer.meta, analyzer.trace.path, analyzer.directory, analyzer.result)
    with subprocess.Popen(  # noqa: S603 - ours
        [analyzer.python, "-c", _DRIVER, *arguments],
        env=analyzer.environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as driver:

        def analyze_once(what: str) -> None:
            print(what, file=driver.stdin, flush=True)
            if next(iter(driver.stdout or ()), "") != "done\n":
                raise SystemExit("the published analyzer failed in process")

        def against_report(what: str) -> Pairs:
            return time_pairs(
                lambda _: analyze_once(what),
                lambda _: report_of(analyzer.trace.path, analyzer.trace.meta),
                pairs=_PAIRS,
                at_least_s=_AT_LEAST_S,
            )

        return against_report(_MAIN), against_report(_ALL)


def _line(trace: BenchTrace, what: str, times: Pairs) -> str:
    low, high = times.spread
    return (
        f"{trace.name:<12} {what:<28} published {statistics.median(times.ours_s):.2f} s, "
        f"ours {statistics.median(times.base_s):.3f} s, speed-up {times.ratio:.1f} "
        f"(quartiles {low:.1f} to {high:.1f}; {len(times.ours_s)} pairs)"
    )


def _run(command: list[str | Path], environment: dict[str, str]) -> None:
    done = subprocess.run(  # noqa: S603 - ours
        command, check=False, env=environment, capture_output=True, text=True
    )
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, command))}\n{done.stderr[-_SHOWN_CHARS:]}")


def _published_keys(trace: BenchTrace) -> dict[str, object]:
    sizes = metadata_document(trace.meta)
    return {
        "trial_name": _TRIAL,
        "run_id": 0,
        "dsp_size": sizes["cp"],
        "world_size": sizes["world"],
        **{f"{name}_size": sizes[name] for name in ("dp", "pp", "tp", "vpp")},
    }
