"""E-mail, sent to a real SMTP server."""

from __future__ import annotations

import email
import ipaddress
import socket
import ssl
from collections.abc import Iterator
from dataclasses import replace
from email.message import EmailMessage
from email.policy import default
from typing import Any

import numpy as np
import pytest
import trustme
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import SMTP, AuthResult, Envelope, Session

from app.incidents.channels.kind import Note, OutgoingMessage
from app.incidents.channels.mail import MAIL
from app.incidents.message import Message
from app.incidents.picture import heatmap_png
from app.platform.outbound import AddressGuard, DeliveryError, Outbound, ReceiverAnswer
from tests.integration.incidents.messages import incident, message, messages, notes

NAME = "mail.example.com"
GUARD = AddressGuard((ipaddress.ip_network("127.0.0.1/32"),), lambda *_: ["127.0.0.1"])
PICTURE = heatmap_png(np.ones((2, 2), dtype=np.float32), "llm")


class Mailbox:
    """A mailbox that stores messages, or answers with a configured error."""

    def __init__(self) -> None:
        self.got: list[tuple[list[str], EmailMessage]] = []
        self.reply = "250 OK"
        self.refused: dict[str, str] = {}

    async def handle_RCPT(  # noqa: N802 - the library's name
        self, _server: SMTP, _session: Session, envelope: Envelope, address: str, _options: object
    ) -> str:
        if address in self.refused:
            return self.refused[address]
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(  # noqa: N802 - the library's name
        self, _server: SMTP, _session: Session, envelope: Envelope
    ) -> str:
        assert isinstance(envelope.content, bytes)
        parsed = email.message_from_bytes(envelope.content, policy=default)
        assert isinstance(parsed, EmailMessage)
        self.got.append((envelope.rcpt_tos, parsed))
        return self.reply


@pytest.fixture
def mailbox() -> Mailbox:
    return Mailbox()


@pytest.fixture
def plain_server(mailbox: Mailbox) -> Iterator[Controller]:
    controller = Controller(mailbox, hostname="127.0.0.1", port=free_port())
    controller.start()
    yield controller
    controller.stop()


def free_port() -> int:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port: int = unused.getsockname()[1]
    return port


def port_of(controller: Controller) -> int:
    return controller.port


def config_of(port: int, **changes: Any) -> Any:  # noqa: ANN401 - of the configuration
    values = {
        "host": NAME,
        "port": port,
        "security": "none",
        "sender": "paceline@example.com",
        "recipients": ["oncall@example.com"],
    }
    return MAIL.config.validate_python(values | changes)


def send(
    port: int,
    sent: Any = None,  # noqa: ANN401 - of the configuration
    tls: ssl.SSLContext | None = None,
    **changes: Any,  # noqa: ANN401 - of the configuration
) -> ReceiverAnswer:
    config = config_of(port, **changes)
    with Outbound(GUARD, 20.0, tls=tls) as outbound:
        return MAIL.send(config, OutgoingMessage(sent or message(incident(1)), PICTURE, outbound))


def test_a_message_has_text_html_and_the_picture(
    mailbox: Mailbox, plain_server: Controller
) -> None:
    assert send(port_of(plain_server)).status == 250
    [(recipients, mail)] = mailbox.got
    assert recipients == ["oncall@example.com"]
    assert mail["Subject"].startswith("[FIRING] llm: Slow worker: node-7")
    assert mail["Message-ID"] == "<00000000-0000-0000-0000-000000000005@example.com>"
    plain, html = mail.get_body(("plain",)), mail.get_body(("html",))
    assert plain is not None
    assert html is not None
    assert "predicted gain 20.0\N{NO-BREAK SPACE}%" in plain.get_content()
    assert "https://paceline.example/sessions/" in html.get_content()
    [image] = [part for part in mail.walk() if part.get_content_type() == "image/png"]
    assert image.get_content() == PICTURE
    assert image["Content-ID"].strip("<>") in html.get_content()


def test_a_host_with_a_line_break_in_its_name_adds_no_header(
    mailbox: Mailbox, plain_server: Controller
) -> None:
    alert = replace(incident(1), where="node-7\r\nBcc: someone@example.com")
    assert send(port_of(plain_server), message(alert)).status == 250
    [(_, mail)] = mailbox.got
    assert mail["Bcc"] is None
    assert "node-7  Bcc: someone@example.com" in mail["Subject"]


@pytest.mark.parametrize(("name", "sent"), list(messages()))
def test_every_message_is_taken(
    name: str, sent: Message, mailbox: Mailbox, plain_server: Controller
) -> None:
    send(port_of(plain_server), sent)
    assert len(mailbox.got) == 1, name


@pytest.mark.parametrize(("name", "told"), list(notes()))
def test_every_note_is_taken_as_text_and_html(
    name: str, told: Note, mailbox: Mailbox, plain_server: Controller
) -> None:
    assert MAIL.tell is not None
    with Outbound(GUARD, 20.0) as outbound:
        assert MAIL.tell(config_of(port_of(plain_server)), told, outbound).status == 250
    [(recipients, mail)] = mailbox.got
    assert recipients == ["oncall@example.com"]
    assert mail["Message-ID"] == "<00000000-0000-0000-0000-000000000006@example.com>"
    plain, html = mail.get_body(("plain",)), mail.get_body(("html",))
    assert plain is not None
    assert html is not None
    assert told.link in plain.get_content()
    assert 'href="https://paceline.example/report?' in html.get_content()
    if name == "nasty":
        assert "<!channel>" not in html.get_content()


def test_all_messages_of_a_job_are_one_thread(mailbox: Mailbox, plain_server: Controller) -> None:
    send(port_of(plain_server), message(incident(1)))
    send(port_of(plain_server), message(incident(2)))
    send(port_of(plain_server), message(incident(1), job="other"))
    threads = [mail["References"] for _, mail in mailbox.got]
    assert threads[0] == threads[1] != threads[2]


@pytest.mark.parametrize(
    ("reply", "permanent"),
    [("451 try later", False), ("452 full", False), ("550 no such user", True), ("554 no", True)],
)
def test_refusals_pass_or_not_by_their_code(
    reply: str,
    *,
    permanent: bool,
    mailbox: Mailbox,
    plain_server: Controller,
) -> None:
    mailbox.reply = reply
    with pytest.raises(DeliveryError) as failed:
        send(port_of(plain_server))
    assert failed.value.permanent == permanent
    assert failed.value.answer == ReceiverAnswer(int(reply[:3]), reply[4:])


def test_one_refused_recipient_does_not_keep_the_others_from_it(
    mailbox: Mailbox, plain_server: Controller
) -> None:
    mailbox.refused = {"gone@example.com": "550 unknown"}
    answer = send(port_of(plain_server), recipients=["gone@example.com", "oncall@example.com"])
    assert "gone@example.com" in answer.text
    assert mailbox.got[0][0] == ["oncall@example.com"]
    mailbox.refused["oncall@example.com"] = "450 busy"
    with pytest.raises(DeliveryError) as failed:
        send(port_of(plain_server), recipients=["gone@example.com", "oncall@example.com"])
    assert not failed.value.permanent, "one of them may be there later"


def test_a_password_goes_out_encrypted_only(mailbox: Mailbox) -> None:
    authority = trustme.CA()
    server_tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(NAME).configure_cert(server_tls)
    client_tls = ssl.create_default_context()
    authority.configure_trust(client_tls)

    def authenticator(*arguments: Any) -> AuthResult:  # noqa: ANN401 - the library's
        data = arguments[-1]
        right = (data.login, data.password) == (b"paceline", b"right")
        return AuthResult(success=right, handled=False)

    controller = Controller(
        mailbox,
        hostname="127.0.0.1",
        port=free_port(),
        tls_context=server_tls,
        require_starttls=True,
        authenticator=authenticator,
        auth_required=True,
    )
    controller.start()
    try:
        port = port_of(controller)
        secure: dict[str, Any] = {
            "security": "starttls",
            "username": "paceline",
            "password": "right",
        }
        assert send(port, tls=client_tls, **secure).status == 250
        with pytest.raises(DeliveryError) as refused:
            send(port, tls=client_tls, **(secure | {"password": "wrong"}))
        assert refused.value.permanent
        with pytest.raises(DeliveryError, match=r"(?i)certificate"):
            send(port, **secure)
    finally:
        controller.stop()
    with pytest.raises(ValueError, match="not sent without encryption"):
        send(port, password="right")  # noqa: S106 - of a server that lives for a test


def test_a_relay_in_a_private_network_is_refused(plain_server: Controller) -> None:
    config = MAIL.config.validate_python(
        {
            "host": "127.0.0.1",
            "port": port_of(plain_server),
            "security": "none",
            "sender": "paceline@example.com",
            "recipients": ["oncall@example.com"],
        }
    )
    with Outbound(AddressGuard(), 5.0) as outbound, pytest.raises(DeliveryError) as refused:
        MAIL.send(config, OutgoingMessage(message(incident(1)), None, outbound))
    assert refused.value.code == "address.refused"
