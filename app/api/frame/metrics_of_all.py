"""Metrics of a server of several processes: whichever answers Prometheus tells those of all.

Each writes its own into a file every second; the one that is asked adds up the others' files and
its own. What tells of a process itself (`process_…`, `python_…`) is that of the one that answers.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from typing import TYPE_CHECKING, Final

from prometheus_client import generate_latest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from prometheus_client import CollectorRegistry

    from app.system.shared import Place

WRITE_EVERY_S: Final = 1.0
# All processes see the same disk.
_ALIKE: Final = frozenset({"paceline_spool_free_bytes"})


class MetricsOfAll:
    """Writes the metrics of this process, and adds up those of all.

    Parameters
    ----------
    place : Place
        This process's among those of the server.
    registry : CollectorRegistry
        What this process counts.
    """

    def __init__(self, place: Place, registry: CollectorRegistry) -> None:
        self._place = place
        self._registry = registry
        self._thread = threading.Thread(target=self._run, name="paceline-metrics", daemon=True)

    def start(self) -> None:
        """Begin to write, until the server has ended: its directory goes with it."""
        self._thread.start()

    def collect(self) -> Iterator[Metric]:
        """Yield the families of all processes."""
        texts = [generate_latest(self._registry).decode()]
        for number in range(self._place.of):
            path = self._place.directory / f"metrics-{number}"
            if number != self._place.number and path.exists():
                texts.append(path.read_text())
        yield from added(list(text_string_to_metric_families(text)) for text in texts)

    def _run(self) -> None:
        path = self._place.directory / f"metrics-{self._place.number}"
        written = path.with_suffix(".new")
        while True:
            time.sleep(WRITE_EVERY_S)
            content = generate_latest(self._registry)
            try:
                written.write_bytes(content)
                written.replace(path)
            except FileNotFoundError:
                return


def added(processes: Iterable[list[Metric]]) -> list[Metric]:
    """Return families with samples added up over processes."""
    sums: dict[tuple[str, str, tuple[tuple[str, str], ...]], float] = defaultdict(float)
    families: dict[str, Metric] = {}
    for found in processes:
        for family in found:
            # When counting began: no sum of it says anything.
            if family.name.endswith("_created"):
                continue
            families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
            for sample in family.samples:
                key = (family.name, sample.name, tuple(sorted(sample.labels.items())))
                if family.name in _ALIKE:
                    sums[key] = sample.value
                else:
                    sums[key] += sample.value
    for (family_name, name, labels), value in sums.items():
        families[family_name].add_sample(name, dict(labels), value)
    return list(families.values())
