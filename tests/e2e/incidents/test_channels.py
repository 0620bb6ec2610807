"""Channels in a browser: added, tested, found dead, changed and deleted."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from playwright.sync_api import expect

from app.incidents.channel_reads import list_channels
from app.incidents.channels.registry import KINDS
from app.incidents.models.rules import Selector
from benchmarks.support.receiver import Reply
from tests.e2e.alerting import act
from tests.e2e.destroying import destroy
from tests.e2e.expecting import expect_well_made, in_every_look
from tests.e2e.looking import keep
from tests.support.reads import read
from tests.support.receiver import Receiver

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

    from benchmarks.support.receiver import Got
    from tests.e2e.alerting import Place
    from tests.e2e.visiting import Look, Visitor

SECRET = "whsec_" + "c2VjcmV0IHNlY3JldCBzZWNyZXQgc2VjcmV0"


def field(page: Page, path: str) -> Locator:
    """Return the visible control of a field of the form."""
    controls = page.locator(f"[data-path='{path}'] :is(input, select, textarea):not([data-clear])")
    return controls.filter(visible=True)


@in_every_look
def test_the_page_of_channels(
    place: Place, receiver: Receiver, visitor: Visitor, look: Look
) -> None:
    alerting = place.alerting
    alerting.channel(receiver, "ops-bus")
    alerting.channel(receiver, "night shift", selector=Selector(jobs=("llama-*",)), enabled=False)
    owners = {"host": "smtp.example.com", "sender": "a@b.example", "recipients": ["c@d.example"]}
    alerting.channel(receiver, "owners", kind="email", config=owners, audience="owner")
    with Receiver(lambda _: Reply(410, b"no such hook")) as gone:
        alerting.channel(gone, "old-hook")
        with Receiver(lambda _: Reply(503, b"maintenance until 18:00")) as away:
            alerting.channel(away, "away")
            alerting.slow()
            alerting.pass_and_work()
    dead = next(c for c in read(alerting.container, list_channels) if c.name == "old-hook")
    page = visitor.open(f"{place.url}/channels", look)
    expect(page.locator("h1")).to_contain_text("The channel old-hook is dead")
    expect(page.locator(".nav .count.dead")).to_contain_text("1 dead")
    table = page.locator("[aria-label=Channels]")
    names = table.locator("tbody a").all_inner_texts()
    assert names == ["old-hook", "away", "ops-bus", "owners", "night shift"]
    states = table.locator("tbody .state").all_inner_texts()
    assert states == ["Dead", "Retrying", "Alive", "Not used yet", "Disabled"]
    lost = page.locator("[aria-label=Undelivered]")
    expect(lost).to_contain_text("maintenance until 18:00")
    expect(lost).to_contain_text("1 did not arrive, 1 pending")
    keep(page, f"channels-{look.name}")
    expect_well_made(page, place.url, look)
    page.goto(f"{place.url}/channels/{dead.id}")
    expect(page.locator("#chosen .line2")).to_contain_text("Dead")
    expect(page.locator("#chosen .line2")).to_contain_text("410")
    keep(page, f"channel-{look.name}")
    expect_well_made(page, place.url, look)


@in_every_look
def test_no_channel_yet(place: Place, visitor: Visitor, look: Look) -> None:
    page = visitor.open(f"{place.url}/channels", look)
    expect(page.locator("h1")).to_contain_text("No messages are sent")
    expect(page.locator("#settings")).to_be_visible()
    page.get_by_label("Kind").select_option(label="E-mail")
    expect(field(page, "config.recipients")).to_be_visible()
    keep(page, f"channels-none-{look.name}")
    expect_well_made(page, place.url, look)


def test_every_kind_has_a_form(place: Place, visitor: Visitor) -> None:
    page = visitor.open(f"{place.url}/channels/new")
    kinds = [name for name in KINDS if name != "apprise"]
    for name in kinds:
        page.get_by_label("Kind").select_option(name)
        fields = page.locator(f"fieldset[data-kind={name}] [data-path]")
        schema = KINDS[name].config.json_schema()
        paths = [field.get_attribute("data-path") for field in fields.all()]
        assert paths == [f"config.{field}" for field in schema["properties"]]
        expect(fields.first).to_be_visible()
    # Apprise is listed only if the operator allows it.
    assert page.get_by_label("Kind").locator("option").count() == len(kinds)


def test_a_channel_from_its_first_test_to_its_end(
    place: Place, receiver: Receiver, visitor: Visitor
) -> None:
    receiver.answer = lambda _: Reply(200, b"heard you")
    page = visitor.open(f"{place.url}/channels")
    field(page, "name").fill("ops-bus")
    field(page, "config.url").fill(receiver.url)
    field(page, "config.signing_secrets").fill(f"{SECRET}\n")
    page.get_by_text("Only of some jobs").first.click()
    field(page, "selector.jobs").fill("llm\nllama-*")
    page.get_by_label("high").check()
    expect(field(page, "rate_limit")).to_have_value("10")
    field(page, "rate_limit").fill("25")
    act(page, "Add")
    expect(page).to_have_url(re.compile(r"/channels/[0-9a-f-]{36}$"))
    [channel] = read(place.alerting.container, list_channels)
    assert channel.selector.jobs == ("llm", "llama-*")
    assert channel.selector.importance == ("high",)
    assert set(channel.secrets) == {"url", "signing_secrets"}
    assert channel.rate_limit == 25

    act(page, "Send a test")
    result = page.locator("#result")
    expect(result).to_contain_text("Delivered: the receiver answered 200.")
    expect(result.locator("pre")).to_have_text("heard you")
    assert "webhook-signature" in receiver.got[-1].headers
    assert SECRET not in page.content()
    assert receiver.url not in page.content()

    # Secret fields that are left empty keep their value.
    field(page, "name").fill("ops")
    field(page, "rate_limit").fill("5")
    page.get_by_label("high").uncheck()
    page.get_by_label("Remove the stored value").check()
    act(page, "Save")
    expect(page.locator("[data-saved]")).to_have_text("Saved.")
    expect(page.locator("#chosen h2")).to_contain_text("ops: Webhook")
    [channel] = read(place.alerting.container, list_channels)
    assert set(channel.secrets) == {"url"}
    assert channel.rate_limit == 5
    assert channel.selector.importance == ()
    act(page, "Send a test")
    expect(result.locator("pre")).to_have_text("heard you")
    assert "webhook-signature" not in receiver.got[-1].headers

    act(page, "Disable")
    expect(page.locator("#chosen .line2")).to_contain_text("disabled by hand")
    expect(page.locator(".nav .count.dead")).to_have_count(0)
    act(page, "Enable")
    expect(page.locator("#chosen .line2")).to_contain_text("nothing sent yet")
    destroy(page, page.get_by_role("button", name="Delete the channel ops"), "Delete channel")
    expect(page).to_have_url(f"{place.url}/channels")
    expect(page.locator("h1")).to_contain_text("No messages are sent")


def test_a_stored_secret_is_asked_for_again_with_another_address(
    place: Place, receiver: Receiver, visitor: Visitor
) -> None:
    config = {"url": receiver.url, "signing_secrets": [SECRET]}
    channel = place.alerting.channel(receiver, "ops", config=config)
    page = visitor.open(f"{place.url}/channels/{channel}")
    visitor.expects("422")
    field(page, "config.url").fill(f"{receiver.url}/moved")
    act(page, "Save")
    fault = page.locator("[data-path='config.signing_secrets'] .fault")
    expect(fault).to_have_text("Enter it again, because URL changed")
    expect(field(page, "config.signing_secrets")).to_be_focused()
    field(page, "config.signing_secrets").fill(SECRET)
    act(page, "Save")
    expect(page.locator("[data-saved]")).to_have_text("Saved.")


def test_a_channel_that_dies_shows_on_every_page_until_it_is_enabled_again(
    place: Place, visitor: Visitor
) -> None:
    alive = False

    def answer(_: Got) -> Reply:
        return Reply(200, b"back") if alive else Reply(410, b"this hook was removed")

    with Receiver(answer) as receiver:
        page = visitor.open(f"{place.url}/channels/new")
        field(page, "name").fill("old-hook")
        field(page, "config.url").fill(receiver.url)
        act(page, "Add")
        act(page, "Send a test")
        expect(page.locator("#result pre")).to_have_text("this hook was removed")
        expect(page.locator("#result")).to_contain_text("410")
        # A failed test does not make a channel dead; only failed messages do.
        expect(page.locator(".nav .count.dead")).to_have_count(0)
        place.alerting.slow()
        place.alerting.pass_and_work()
        for address in ("/", "/plans", "/incidents"):
            page.goto(f"{place.url}{address}")
            expect(page.locator(".nav .count.dead")).to_contain_text("1 dead")
        page.locator(".nav").get_by_role("link", name="Channels").click()
        lost = page.locator("[aria-label=Undelivered]")
        expect(lost).to_contain_text("this hook was removed")
        page.get_by_role("link", name="old-hook").click()
        alive = True
        act(page, "Enable")
        expect(page.locator(".nav .count.dead")).to_have_count(0)
        # The failed message can be sent again now.
        lost.get_by_role("button", name="Send again").click()
        expect(lost).to_contain_text("pending")
        place.alerting.work()
        page.goto(f"{place.url}/channels")
        expect(page.locator("[aria-label=Channels] tbody .state")).to_have_text("Alive")
        expect(lost).to_contain_text("Every message of the last 7 days arrived")


def test_a_fault_is_shown_next_to_its_field(
    place: Place, receiver: Receiver, visitor: Visitor
) -> None:
    place.alerting.channel(receiver, "taken")
    page = visitor.open(f"{place.url}/channels/new")
    act(page, "Add")
    expect(page.locator("#name-fault")).to_contain_text("Must not be empty")
    visitor.expects("422")
    field(page, "name").fill("taken")
    field(page, "config.url").fill("ops.example")
    field(page, "config.signing_secrets").fill("not a secret")
    act(page, "Add")
    expect(page.locator("#webhook-config-url-fault")).to_contain_text("Must look like https")
    expect(page.locator("#name-fault")).to_be_empty()
    expect(field(page, "config.url")).to_be_focused()
    visitor.expects("422")
    field(page, "config.url").fill(receiver.url)
    field(page, "config.signing_secrets").fill("")
    act(page, "Add")
    expect(page.locator("#name-fault")).to_contain_text("There is a channel taken already.")
    visitor.expects("409")
    page.get_by_label("Kind").select_option(label="E-mail")
    field(page, "name").fill("mail")
    field(page, "config.host").fill("smtp.example.com")
    field(page, "config.sender").fill("paceline@example.com")
    field(page, "config.recipients").fill("kim@example.com\nnobody")
    field(page, "config.port").fill("70000")
    act(page, "Add")
    expect(page.locator("#email-config-recipients-fault")).to_contain_text(
        "Must look like on-call@"
    )
    expect(page.locator("#email-config-port-fault")).to_contain_text("at most 65535")
    visitor.expects("422")
    assert len(read(place.alerting.container, list_channels)) == 1


def test_an_address_that_the_operator_does_not_allow_is_refused_next_to_its_field(
    place: Place, visitor: Visitor
) -> None:
    page = visitor.open(f"{place.url}/channels/new")
    field(page, "name").fill("inside")
    field(page, "config.url").fill("http://10.1.2.3/hook")
    act(page, "Add")
    expect(page.locator("#webhook-config-url-fault")).to_contain_text("10.1.2.3")
    visitor.expects("422")


def test_a_form_that_is_being_filled_in_is_left_alone(
    place: Place, receiver: Receiver, visitor: Visitor
) -> None:
    channel = place.alerting.channel(receiver)
    page = visitor.open(f"{place.url}/channels/{channel}")
    before = page.locator("#main").get_attribute("data-version")
    field(page, "name").fill("half a na")
    page.locator("h1").click()
    place.alerting.slow()
    place.alerting.pass_and_work()
    # The page updates every five seconds, and must keep the form's content.
    page.wait_for_timeout(6000)
    expect(field(page, "name")).to_have_value("half a na")
    expect(page.locator("#main")).to_have_attribute("data-version", str(before))
    act(page, "Save")
    expect(page.locator("#chosen .line2")).to_contain_text("Alive")
    assert json.dumps(str(before)) not in page.content()
