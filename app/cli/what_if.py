"""`paceline analyze --fix/--keep/--scale`: a question of one's own about a trace file."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from app.analysis.replay.questions import BaseDurations, Change, Question, answer
from app.analysis.replay.session import prepare_replay
from app.cli.analyze import read_trace
from app.cli.selection import parse_factor, parse_selection
from app.errors import Fault, InvalidQuestionError


def answer_file(  # noqa: PLR0913 - one argument an option
    path: Path,
    meta_path: Path | None,
    fix: Sequence[str],
    keep: Sequence[str],
    scale: Sequence[str],
    *,
    as_json: bool,
) -> None:
    """Answer a question about a trace file and print step time and gain.

    Raises
    ------
    PacelineError
        The file is no trace, or the question cannot be read or answered.
    """
    question = _question(fix, keep, scale)
    replayed = prepare_replay(read_trace(path, meta_path), question.without)
    document = answer(replayed, question).as_document()
    if as_json:
        json.dump(document, sys.stdout, allow_nan=False)
        sys.stdout.write("\n")
        return
    gain = document["gain"]
    change = f"{gain * 100:.1f} % less" if gain >= 0 else f"{-gain * 100:.1f} % more"
    sys.stdout.write(
        f"{document['step_time_s']:.3f} s a step, {change} than the "
        f"{document['simulated_step_time_s']:.3f} s of today; "
        f"{document['slowdown']:.3f}× the ideal {document['ideal_step_time_s']:.3f} s\n"
    )


def _question(fix: Sequence[str], keep: Sequence[str], scale: Sequence[str]) -> Question:
    if keep and fix:
        raise InvalidQuestionError(
            "--keep makes all else ideal, so --fix cannot be combined with it"
        )
    changes = [Change(parse_selection(text), BaseDurations.IDEAL) for text in fix]
    changes += [Change(parse_selection(text), BaseDurations.RECORDED) for text in keep]
    changes += [_scaled(text) for text in scale]
    return Question(BaseDurations.IDEAL if keep else BaseDurations.RECORDED, tuple(changes))


def _scaled(text: str) -> Change:
    selection, star, factor = text.rpartition("*")
    if not star:
        message = f"{text!r} has no factor, such as {text}*0.5"
        raise InvalidQuestionError(message, faults=(Fault("scale", message, column=text),))
    return Change(parse_selection(selection), BaseDurations.RECORDED, parse_factor(factor))
