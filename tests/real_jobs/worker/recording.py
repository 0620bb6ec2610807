"""A worker's own instrumentation: operations and ends of steps, by `time.time_ns()`."""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.real_jobs.jobs import Place

GC: Final = "gc"


@dataclass(frozen=True, slots=True)
class Label:
    """The label of an operation: its type and, if known, its microbatch and model chunk."""

    op: str
    mb: int | None = None
    mc: int | None = None


class Recorder:
    """The operations of one worker in one scenario, in the order of their ends."""

    def __init__(self, rank: int, place: Place) -> None:
        self.step = 0
        self._rank = rank
        self._place = place
        self._rows: list[dict[str, int | str]] = []
        self._step_ends_ns: list[int] = []
        self._collecting_since_ns = 0

    def add(self, label: Label, start_ns: int, end_ns: int, step: int) -> None:
        """Record an operation, on any thread. The warm-up is left out."""
        if not step:
            return
        row: dict[str, int | str] = {
            "rank": self._rank,
            "dp": self._place.dp,
            "pp": self._place.pp,
            "step": step,
            "op": label.op,
            "start_ns": start_ns,
            "dur_ns": end_ns - start_ns,
        }
        if label.mb is not None:
            row["mb"] = label.mb
        if label.mc is not None:
            row["mc"] = label.mc
        self._rows.append(row)

    def timed(self, label: Label) -> AbstractContextManager[None]:
        """Record the code inside the context as one operation."""
        return self._timed(label)

    @contextmanager
    def _timed(self, label: Label) -> Iterator[None]:
        step, start = self.step, time.time_ns()
        yield
        self.add(label, start, time.time_ns(), step)

    def end_step(self) -> None:
        """Record the end of the step, and begin the next."""
        self._step_ends_ns.append(time.time_ns())
        self.step += 1

    def watch(self, label: Label, complete: Callable[[], object]) -> Any:  # noqa: ANN401
        """Return a proxy for a transfer if the client watches it; None if the worker does."""
        del label, complete
        return None

    def record_collections(self) -> None:
        """Record garbage collections from here on."""
        gc.callbacks.append(self._on_collection)

    def stop_recording_collections(self) -> None:
        """Undo `record_collections`."""
        if self._on_collection in gc.callbacks:
            gc.callbacks.remove(self._on_collection)

    def _on_collection(self, phase: str, info: dict[str, int]) -> None:
        del info
        if phase == "start":
            self._collecting_since_ns = time.time_ns()
        else:
            self.add(Label(GC), self._collecting_since_ns, time.time_ns(), self.step)

    def write(
        self,
        directory: Path,
        scenario: str,
        rows: list[str] | None = None,
        meta: dict[str, Any] | None = None,
    ) -> None:
        """Write the recorded operations; the launcher joins the workers' files."""
        document = {
            "rows": [json.dumps(row) for row in self._rows] if rows is None else rows,
            "step_ends_ns": self._step_ends_ns,
            "meta": meta,
        }
        path = directory / f"{scenario}.{self._rank}.json"
        written = path.with_suffix(".part")
        written.write_text(json.dumps(document))
        written.rename(path)
