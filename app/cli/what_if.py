"""`paceline analyze --fix` and `--replace`: predict the effect of a change on a trace file."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from app.analysis.diagnosis.headline import HeadlineKind
from app.analysis.replay.adaptations.kind import Name
from app.analysis.replay.session import prepare_replay
from app.analysis.replay.what_if import Against, BaseDurations, Change, Question, answer
from app.analysis.report.build import analyze
from app.analysis.trace.model import Trace
from app.cli.analyze import parse_factor, parse_selection, read_trace
from app.errors import Fault, InvalidQuestionError, UnanalyzableError


def answer_file(
    path: Path,
    meta_path: Path | None,
    question: Question,
    *,
    as_json: bool,
    labels: Path | None = None,
) -> None:
    """Answer a question about a trace file and print step time and gain."""
    trace = read_trace(path, meta_path, labels)
    answered = answer(prepare_replay(trace, question.without), question)
    against = _baseline(trace, question.without) or answered.published
    document = answered.as_document(against)
    if as_json:
        json.dump(document, sys.stdout, allow_nan=False)
        sys.stdout.write("\n")
        return
    gain = document["gain"]
    change = f"{gain * 100:.1f} % less" if gain >= 0 else f"{-gain * 100:.1f} % more"
    ideal = f"{document['slowdown']:.3f}× the ideal {document['ideal_step_time_s']:.3f} s"
    if HeadlineKind(against.kind).without_causes:
        reference = document["reference"]
        without = f"the {reference['step_time_s']:.3f} s without its causes"
        ideal = f"{reference['slowdown']:.3f}× {without}, {ideal} of S"
    replayed = document["replayed_step_time_s"]
    beyond = (
        f" (replayed {replayed:.3f} s: what is faster than without its causes is no gain)"
        if replayed < document["step_time_s"]
        else ""
    )
    sys.stdout.write(
        f"{document['step_time_s']:.3f} s a step{beyond}, {change} than the "
        f"{document['simulated_step_time_s']:.3f} s of today; {ideal}\n"
    )


def _baseline(trace: Trace, without: tuple[Name, ...]) -> Against | None:
    """Return the baseline that `paceline analyze` reports; None if the trace has no verdict."""
    try:
        headline = analyze(trace, without).report.headline
    except UnanalyzableError:
        return None
    return Against(headline.kind.value, headline.slowdown)


def question_of(
    *,
    fix: Sequence[str] = (),
    replace: Sequence[str] = (),
    keep: Sequence[str] = (),
    scale: Sequence[str] = (),
    without: tuple[Name, ...] = (),
) -> Question:
    """Return the question that the options of the command line describe."""
    if keep and fix:
        raise InvalidQuestionError(
            "--keep makes all else ideal, so --fix cannot be combined with it"
        )
    changes = [Change(parse_selection(text), BaseDurations.IDEAL) for text in fix]
    changes += [Change(parse_selection(text), BaseDurations.PEERS) for text in replace]
    changes += [Change(parse_selection(text), BaseDurations.RECORDED) for text in keep]
    changes += [_scaled(text) for text in scale]
    base = BaseDurations.IDEAL if keep else BaseDurations.RECORDED
    return Question(base, tuple(changes), without)


def _scaled(text: str) -> Change:
    selection, star, factor = text.rpartition("*")
    if not star:
        message = f"{text!r} has no factor, such as {text}*0.5"
        raise InvalidQuestionError(message, faults=(Fault("scale", message, column=text),))
    return Change(parse_selection(selection), BaseDurations.RECORDED, parse_factor(factor))
