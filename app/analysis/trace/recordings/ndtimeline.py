"""Decoder of NDTimeline files (veScale, ``vescale/ndtimeline``), in both forms of its handlers.

`LocalTimelineNDHandler` writes Chrome's events: a bare array, ``pid`` the DP rank, times in
microseconds. `parse_record` makes dictionaries, one for each metric, rank and step, with lists of
starts and durations in seconds; they are written as an array or one a line. Times are doubles of
the host's clock, which resolve a quarter of a microsecond today. Neither form contains the sizes of
the job.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Final, NoReturn

from app.analysis.trace.limits import NS_PER_S, Limits, refuse
from app.analysis.trace.metadata import Unmapped, total
from app.analysis.trace.model import SessionMeta, Sizes
from app.analysis.trace.recordings.events import NS_PER_US, Event, event_of
from app.analysis.trace.recordings.json_events import read_values
from app.analysis.trace.recordings.recording import Recording, Rows
from app.errors import Fault, InvalidMetadataError

# Key that only records have; events of the Chrome form have the key `ph` instead.
_RECORD_KEY: Final = "metric"
_COMPUTES: Final = ("forward-compute", "backward-compute")
STEP_GETTER: Final = "call inc_step() once a step, or give a step_getter"


def decode_ndtimeline(
    body: Path | bytes, meta: SessionMeta | None, limits: Limits, *, part: bool
) -> Recording:
    """Decode an NDTimeline file and check its values.

    Parameters
    ----------
    body : Path or bytes
        Plain, gzip or zstd.
    meta : SessionMeta or None
        Required: the body does not contain the sizes of the job.

    Raises
    ------
    InvalidTraceError
        See `read_values`, `Event` and `Rows.trace`.
    InvalidMetadataError
        `metadata.missing`.
    """
    if meta is None:
        message = "NDTimeline does not say the sizes of the job: give them with it"
        raise InvalidMetadataError(message, code="metadata.missing")
    rows, lost = Rows(limits), Counter[str]()
    steps: set[int] = set()
    for item in read_values(body, limits):
        event = event_of(item.index, item.value)
        if _RECORD_KEY in event.fields:
            steps.add(_add_record(rows, event, meta.sizes))
        elif event.text("ph") == "X":
            steps.add(_add_event(rows, event))
        elif event.text("ph") != "M":
            lost["events that are no operation"] += 1
    unmapped = [Unmapped(what, count) for what, count in lost.items()]
    if steps == {0}:
        unmapped.append(Unmapped("operations whose step was not counted", len(rows), STEP_GETTER))
    return Recording(rows.trace(meta, part=part), total(unmapped))


def _add_event(rows: Rows, event: Event) -> int:
    args = event.args
    step = args.integer("step")
    rows.add(
        event.text("name"),
        event.nanoseconds("ts", NS_PER_US),
        event.duration_ns("dur", NS_PER_US),
        event=event.index,
        rank=args.integer("rank"),
        dp=event.integer("pid"),
        pp=args.integer("pp"),
        step=step,
        mb=args.optional_integer("mb"),
        mc=args.optional_integer("mc"),
    )
    return step


def _add_record(rows: Rows, event: Event, sizes: Sizes) -> int:
    starts, durations = event.fields.get("start_ts"), event.fields.get("duration")
    if not isinstance(starts, list) or not isinstance(durations, list):
        _refuse(event, "start_ts and duration must be lists")
    if len(starts) != len(durations):
        _refuse(event, f"{len(starts)} starts and {len(durations)} durations do not match")
    metric, step = event.text(_RECORD_KEY), event.integer("step")
    # The handler that writes records gives a constant model chunk, which is wrong for a stage with
    # several chunks.
    chunk = event.optional_integer("model_chunk") if sizes.vpp == 1 else None
    mc = chunk if metric in _COMPUTES else None
    for start, duration in zip(starts, durations, strict=True):
        times = Event(event.index, {"start_ts": start, "duration": duration})
        rows.add(
            metric,
            times.nanoseconds("start_ts", NS_PER_S),
            times.duration_ns("duration", NS_PER_S),
            event=event.index,
            rank=event.integer("rank"),
            dp=event.integer("dp_rank"),
            pp=event.integer("stage"),
            step=step,
            mc=mc,
        )
    return step


def _refuse(event: Event, message: str) -> NoReturn:
    refuse([Fault("bad_event", f"event {event.index}: {message}", row=event.index)])
