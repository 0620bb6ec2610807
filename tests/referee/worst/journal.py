"""What has been judged so far: kept in a file, so that judging goes on where it was stopped."""

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
    """Judged jobs of draws, each known by its physics and number.

    Parameters
    ----------
    path : Path or None
        A file of a line for each draw and job; None keeps them for this run alone.
    """

    path: Path | None = None
    _first: dict[Key, int] = field(default_factory=dict)
    _jobs: dict[Key, dict[Wanted, Judged]] = field(default_factory=dict)

    @classmethod
    def opened(cls, path: Path | None) -> Journal:
        """Return a journal with what its file holds; a line that was cut off is judged again."""
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
        """Return the first seed of a draw: the one that it began with, or else a new one."""
        if key not in self._first:
            self._first[key] = draw_seed()
            self._write(key, {_DRAW: self._first[key]})
        return self._first[key]

    def jobs(self, key: Key) -> tuple[Judged, ...]:
        """Return what is judged of a draw, those that are not slow included."""
        return tuple(self._jobs.get(key, {}).values())

    def resumed(self, key: Key, mapping: Mapping) -> Mapping:
        """Return a mapping that judges only what is not known of a draw, and keeps it."""

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
