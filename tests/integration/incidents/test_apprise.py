"""The extra `apprise`: the library sends to a real server."""

from __future__ import annotations

import pytest

from app.errors import InvalidChannelError
from app.incidents.channel_settings import send_example
from app.incidents.channel_writes import create_channel
from app.incidents.channels.apprise import APPRISE
from app.incidents.channels.kind import OutgoingMessage
from app.platform.outbound import AddressGuard, DeliveryError, Outbound
from benchmarks.support.receiver import Reply
from tests.integration.incidents.messages import incident, message, notes
from tests.support.alerting import Alerting
from tests.support.project import build
from tests.support.receiver import Receiver

# The library imports a module that a later Python removes.
pytestmark = pytest.mark.filterwarnings("ignore:'imghdr' is deprecated:DeprecationWarning")


def _send(url: str) -> str:
    config = APPRISE.config.validate_python({"urls": [url]})
    with Outbound(AddressGuard(), 20.0) as outbound:
        return APPRISE.send(config, OutgoingMessage(message(incident(1)), None, outbound)).text


def test_a_message_goes_out_through_the_library(receiver: Receiver) -> None:
    assert _send(f"json://127.0.0.1:{receiver.port}/hook") == "Accepted by Apprise."
    [got] = receiver.got
    assert got.json["title"] == "[FIRING] llm: Slow worker: node-7"
    assert "predicted gain 20.0\N{NO-BREAK SPACE}%" in got.json["message"]


def test_a_note_goes_out_through_the_library(receiver: Receiver) -> None:
    week = dict(notes())["week"]
    config = APPRISE.config.validate_python({"urls": [f"json://127.0.0.1:{receiver.port}/hook"]})
    assert APPRISE.tell is not None
    with Outbound(AddressGuard(), 20.0) as outbound:
        APPRISE.tell(config, week, outbound)
    [got] = receiver.got
    assert got.json["title"] == week.title
    assert week.link in got.json["message"]


def test_a_failure_passes_and_an_unknown_address_does_not(receiver: Receiver) -> None:
    receiver.answer = lambda _: Reply(500)
    with pytest.raises(DeliveryError) as failed:
        _send(f"json://127.0.0.1:{receiver.port}/hook")
    assert not failed.value.permanent
    with pytest.raises(DeliveryError) as unknown:
        _send("pigeon://loft")
    assert unknown.value.permanent


def test_a_long_message_is_sent_in_parts(receiver: Receiver) -> None:
    long = "x" * 9000
    config = APPRISE.config.validate_python({"urls": [f"json://127.0.0.1:{receiver.port}/hook"]})
    with Outbound(AddressGuard(), 20.0) as outbound:
        found = message(*(incident(number, text=long) for number in range(1, 4)))
        APPRISE.send(config, OutgoingMessage(found, None, outbound))
    assert len(receiver.got) > 1
    assert all(len(got.json["message"]) <= 32_768 for got in receiver.got)


def test_it_has_to_be_allowed(alerting: Alerting) -> None:
    with pytest.raises(InvalidChannelError, match="PACELINE_ALERT_APPRISE"):
        create_channel(
            alerting.container, name="x", kind="apprise", config={"urls": ["json://localhost"]}
        )


def test_nothing_goes_out_once_it_is_not_allowed_any_more(
    alerting: Alerting, receiver: Receiver
) -> None:
    allowed = build(alerting.container.settings.model_copy(update={"alert_apprise": True}))
    url = f"json://127.0.0.1:{receiver.port}/hook"
    view = create_channel(allowed, name="x", kind="apprise", config={"urls": [url]})
    assert view.secrets == {"urls": None}
    assert send_example(allowed, view.id).delivered
    allowed.close()
    refused = send_example(alerting.container, view.id)
    assert (refused.delivered, refused.code) == (False, "apprise.off")
    assert len(receiver.got) == 1
