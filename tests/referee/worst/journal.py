"""A file of judged jobs, from which a stopped run continues."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

from tests.referee.worst.draw import Judged, Mapping, Wanted

_DRAW: Final = "draw"
_JOB: Final = "job"

Key = tuple[str, int]


@dataclass(slots=True)
class Journal:
    """Judged jobs of draws, identified by physics and seed.

    Parameters
    ----------
    path : Path or None
        A file with a line for each draw and job; None keeps them in memory.
    """

    path: Path | None = None
    _first: dict[Key, int] = field(default_factory=dict)
    _jobs: dict[Key, dict[Wanted, Judged]] = field(default_factory=dict)

    @classmethod
    def opened(cls, path: Path | None) -> Journal:
        """Return a journal with the content of its file, without an incomplete last line."""
        journal = cls(path)
        if path is None or not path.exists():
            return journal
        *whole, cut_off = path.read_text().split("\n")
        if cut_off:
            path.write_text("".join(f"{line}\n" for line in whole))
        for entry in map(json.loads, whole):
            key = (entry["physics"], entry["number"])
            if _DRAW in entry:
                journal._first[key] = entry[_DRAW]
            else:
                journal._remember(key, Judged(**entry[_JOB]))
        return journal

    def first_seed(self, key: Key, draw_seed: Callable[[], int]) -> int:
        """Return the first seed of a draw: the stored one, or else a new one."""
        if key not in self._first:
            self._first[key] = draw_seed()
            self._write(key, {_DRAW: self._first[key]})
        return self._first[key]

    def jobs(self, key: Key) -> tuple[Judged, ...]:
        """Return the judged jobs of a draw, including those that are not slow."""
        return tuple(self._jobs.get(key, {}).values())

    def resumed(self, key: Key, mapping: Mapping) -> Mapping:
        """Return a mapping that judges and stores only the unknown jobs of a draw."""

        def judge_rest(
            of: Callable[[Wanted], Judged], wanted: Iterable[Wanted], /
        ) -> Iterable[Judged]:
            asked = list(wanted)
            known = self._jobs.setdefault(key, {})
            for judged in mapping(of, [one for one in asked if one not in known]):
                self._remember(key, judged)
                self._write(key, {_JOB: asdict(judged)})
            return [known[one] for one in asked]

        return judge_rest

    def _remember(self, key: Key, judged: Judged) -> None:
        self._jobs.setdefault(key, {})[judged.seed, judged.cause] = judged

    def _write(self, key: Key, entry: dict[str, object]) -> None:
        if self.path is not None:
            physics, number = key
            with self.path.open("a") as file:
                file.write(json.dumps({"physics": physics, "number": number, **entry}) + "\n")
