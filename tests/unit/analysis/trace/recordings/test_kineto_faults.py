from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest

from app.analysis.trace.decode import decode
from app.analysis.trace.limits import Limits
from app.analysis.trace.model import Sizes
from app.analysis.trace.recordings.json_events import Skipped, read_items
from app.errors import InvalidTraceError
from tests.support.equal_hashes import kineto
from tests.unit.analysis.trace.bodies import LIMITS
from tests.unit.analysis.trace.recordings.kineto_files import (
    AT,
    KinetoFile,
    device_file,
    host_steps,
    operations,
    read_trace,
)

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.mark.parametrize(
    ("event", "code"),
    [
        ("7", "trace.bad_event"),
        ('{"ph":"X","cat":"user_annotation","name":"PP:0F0","dur":1}', "trace.missing_key"),
        ('{"ph":"X","cat":"user_annotation","name":3}', "trace.wrong_type"),
        (
            '{"ph":"X","cat":"user_annotation","name":"PP:0F0","ts":1e999999999,"dur":1}',
            "trace.time_overflow",
        ),
        (
            '{"ph":"X","cat":"kernel","name":"k","ts":1,"args":{"correlation":99999999999999999999}}',
            "trace.integer_overflow",
        ),
        ('{"ph":"X","cat":"kernel","name":"a","ts":NaN}', "trace.not_finite"),
        ('{"ph":"X","cat":"kernel","name":"a","ts":1,"dur":-inf}', "trace.not_finite"),
        (
            '{"ph":"X","cat":"kernel","name":"a","ts":1,"args":{"correlation":nan}}',
            "trace.wrong_type",
        ),
        ('{"ph":"X","ts":nanny}', "trace.bad_json"),
        ("{NaN:1}", "trace.bad_json"),
        ('{"a":1 NaN}', "trace.bad_json"),
        ("-inf", "trace.bad_event"),
        ('{"ph":"X" "ts"}', "trace.bad_json"),
        (f'{{"ph":"X","ts":{"9" * 30}e999999999999999999}}', "trace.bad_json"),
    ],
)
def test_many_faults_have_the_place_of_the_first_event(event: str, code: str) -> None:
    file = host_steps(1)
    place = len(file.events)
    file.events += [event] * 12

    with pytest.raises(InvalidTraceError) as caught:
        read_trace(file)
    assert caught.value.stable_code == code
    assert caught.value.faults[0].row == place


FAULTY = "faulty events, such as those with a name whose quotes are not escaped"


@pytest.mark.parametrize(
    "event",
    [
        "7",
        '{"ph":"X","cat":"user_annotation","name":"PP:0F0","dur":1}',
        '{"ph":"X","cat":"kernel","name":"k","ts":1,"args":{"correlation":99999999999999999999}}',
        '{"ph":"X","cat":"kernel","name":"a","ts":NaN}',
        '{"ph":"X","ts":nanny}',
    ],
)
@pytest.mark.parametrize("place", [0, 5, -1])
def test_only_the_faulty_event_is_left_out(event: str, place: int) -> None:
    wanted = operations(read_trace(host_steps()))
    file = host_steps()
    file.events.insert(place if place >= 0 else len(file.events), event)
    decoded = decode(file.body(), None, limits=LIMITS, part=True)
    assert operations(decoded.trace) == wanted
    assert [(one.what, one.count) for one in decoded.unmapped] == [(FAULTY, 1)]


# Names of Python functions as the profiler wrote them with `with_stack`, without escapes.
NAMES = (
    '{"device": "cpu", "dtype": "float32"}(12): run',
    'f("x")',
    'one " quote',
    "a path\\",
    '"',
    'guards[{"a": 1}, {"b": [2]}](3): check',
)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("place", [0, 7, -1])
@pytest.mark.parametrize("between", [",", ",\n    "])
def test_an_event_with_unescaped_quotes_in_its_name_is_left_out(
    name: str, place: int, between: str
) -> None:
    check_that_an_event_of_this_name_is_left_out(host_steps(), name, place, between)


@pytest.mark.parametrize("place", [0, 9_000, -1])
def test_an_event_with_unescaped_quotes_is_left_out_among_many(place: int) -> None:
    file = host_steps()
    for number in range(20_000):
        file.add("aten::mm", AT + number, 1, cat="cpu_op", External_id=number)
    check_that_an_event_of_this_name_is_left_out(file, NAMES[0], place, ",")


def check_that_an_event_of_this_name_is_left_out(
    file: KinetoFile, name: str, place: int, between: str
) -> None:
    wanted = operations(read_trace(file))
    text = name.replace("\\\\", "\\")
    broken = f'{{"ph":"X","cat":"python_function","name":"{text}","pid":1,"tid":7,"ts":1,"dur":1}}'
    events = list(file.events)
    events.insert(place if place >= 0 else len(events), broken)
    empty = KinetoFile(rank=file.rank, world=file.world, groups=file.groups)
    body = empty.body().replace(b"[]}", f"[{between.join(events)}]}}".encode())
    decoded = decode(body, None, limits=LIMITS, part=True)
    assert operations(decoded.trace) == wanted
    assert [(one.what, one.count) for one in decoded.unmapped] == [(FAULTY, 1)]


def test_characters_of_a_name_that_are_not_utf_8_are_replaced() -> None:
    file = host_steps()
    wanted = operations(read_trace(file))
    file.add("größe.py(3): run �", AT, 10, cat="python_function")
    body = file.body().replace(b"\\u00f6", b"\xf6").replace(b"\\u00df", b"\xdf")
    decoded = decode(body, None, limits=LIMITS, part=True)
    assert operations(decoded.trace) == wanted
    assert [(one.what, one.count) for one in decoded.unmapped] == [
        ("characters of names that are not UTF-8", 2)
    ]


def test_a_text_of_broken_events_is_searched_once() -> None:
    skipped = Skipped(key="ph")
    broken = b'{"a":"b"c"},' * 60_000
    body = b'{"traceEvents":[' + broken + b'{"ph":"X"}]}'
    items = list(read_items(body, LIMITS, frozenset({"traceEvents"}), skipped=skipped))
    assert len(items) <= 1
    assert skipped.scanned < 8 * len(body)


def test_a_rank_that_is_not_named_is_refused_with_the_remedy() -> None:
    file = host_steps(1, fields={"distributedInfo": {}})
    with pytest.raises(InvalidTraceError, match="init_process_group") as caught:
        read_trace(file)
    assert caught.value.stable_code == "trace.unknown_rank"


def test_a_truncated_file_is_reported_as_truncated() -> None:
    body = host_steps(1).body()
    with pytest.raises(InvalidTraceError) as caught:
        decode(body[: len(body) // 2], None, limits=LIMITS)
    assert caught.value.stable_code == "trace.truncated"


def test_fields_behind_the_events_count_as_well() -> None:
    document = json.loads(host_steps(1).body())
    info = document.pop("distributedInfo")
    body = json.dumps({**document, "distributedInfo": info}).encode()

    assert decode(body, None, limits=Limits()).trace.meta.sizes == Sizes(dp=2, pp=2)


def test_a_number_without_a_value_that_nothing_needs_is_no_fault() -> None:
    file = host_steps()
    whole = operations(read_trace(file))
    for text in ("nan", "-nan", "inf", "-inf", "NaN", "Infinity", "-Infinity"):
        events = [
            event.replace('"args":{', f'"args":{{"Collective bandwidth":{text},', 1)
            for event in file.events
        ]
        changed = KinetoFile(events=[one.replace(",}", "}") for one in events])
        assert operations(read_trace(changed)) == whole


def test_many_numbers_without_a_value_cost_no_more_than_one() -> None:
    file = host_steps()
    whole = operations(read_trace(file))
    many = ",".join(["nan", "-inf"] * 60_000)
    file.events[0] = file.events[0].replace(
        '"args":{', f'"args":{{"a":[{many}],"b":"nan, -inf",', 1
    )
    file.events[0] = file.events[0].replace(",}", "}")
    assert operations(read_trace(file)) == whole


def test_words_in_names_are_no_numbers() -> None:
    file = host_steps()
    file.add('a "nan, inf', AT + 1, 1000, cat="x", said="nan")
    file.events.append('{"ph":"X","cat":"x","name":"nan","args":{"a":nan,"b":"inf, \\\\"}}')
    file.add("PP:1F7", AT + 50_000_000, 1000)
    assert (10, "forward-compute", 7) in operations(read_trace(file))


def test_numbers_beyond_what_a_double_tells_apart_join_kernels() -> None:
    big = 1 << 62
    file = device_file()
    found = operations(read_trace(file))
    for number in range(len(file.events)):
        for key in ("correlation", "External id"):
            text = file.events[number]
            begin, key_text, rest = text.partition(f'"{key}": ')
            if key_text:
                digits = rest.split(",", 1)[0].split("}", 1)[0]
                rest = rest.replace(digits, str(int(digits) + big), 1)
                file.events[number] = begin + key_text + rest
    assert operations(read_trace(file)) == found


def test_the_refusal_names_the_event_in_which_the_text_ends() -> None:
    file = host_steps()
    cut = file.body().index(file.events[5].encode()) + 9
    with pytest.raises(InvalidTraceError, match="ends in the middle, in event 5") as caught:
        decode(file.body()[:cut], None, limits=LIMITS)
    assert caught.value.stable_code == "trace.truncated"


@pytest.mark.parametrize("events", [None, {}, 3, "[]"])
def test_events_that_are_no_array_are_refused(events: object) -> None:
    file = KinetoFile(fields={"traceEvents": events})
    text = json.dumps(json.loads(file.body()) | {"traceEvents": events})
    with pytest.raises(InvalidTraceError, match="traceEvents is no array") as caught:
        decode(text.encode(), None, limits=LIMITS)
    assert caught.value.stable_code == "trace.bad_event"


def test_a_duration_beyond_all_times_costs_its_operation_only() -> None:
    file = host_steps()
    whole = operations(read_trace(file))
    sent = next(at for at, event in enumerate(file.events) if "gloo:send" in event)
    file.events[sent] = re.sub(r'"dur":[0-9.]+', '"dur":1e99', file.events[sent])
    found = operations(read_trace(file))
    assert set(found) == set(whole)
    assert sum(found[key] != whole[key] for key in whole) == 1


@pytest.mark.parametrize("again", [lambda events: events * 2, lambda events: sorted(events * 2)])
def test_a_recording_that_holds_its_events_twice_is_read_once(
    again: Callable[[list[str]], list[str]],
) -> None:
    file = host_steps()
    whole = decode(file.body(), None, limits=LIMITS)
    file.events = again(file.events)
    twice = decode(file.body(), None, limits=LIMITS)

    assert operations(twice.trace) == operations(whole.trace)
    assert len(twice.trace) == len(whole.trace)
    assert [(one.what, one.count) for one in twice.unmapped] == [
        ("labelled ranges that the recording holds twice", 16)
    ]


@pytest.mark.parametrize("keys", [("pid",), ("tid",), ("pid", "tid")])
def test_threads_with_equal_hashes_are_refused_with_their_event(keys: tuple[str, ...]) -> None:
    with pytest.raises(InvalidTraceError) as caught:
        decode(kineto(keys), None, limits=LIMITS)
    assert caught.value.stable_code == "trace.integer_overflow"
    assert (caught.value.faults[0].row, caught.value.faults[0].column) == (4, keys[0])


@pytest.mark.parametrize("key", ["device", "stream"])
def test_streams_with_equal_hashes_are_refused(key: str) -> None:
    file = device_file()
    place = len(file.events)
    event = (
        '{"ph":"X","cat":"kernel","name":"k","ts":1,"dur":1,"pid":0,"tid":7,'
        f'"args":{{"correlation":1,"{key}":{5 * ((1 << 61) - 1)}}}}}'
    )
    file.events += [event] * 12
    with pytest.raises(InvalidTraceError) as caught:
        read_trace(file)
    assert caught.value.stable_code == "trace.integer_overflow"
    assert (caught.value.faults[0].row, caught.value.faults[0].column) == (place, key)
