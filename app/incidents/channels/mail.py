"""E-mail over SMTP: text and HTML with an inline heatmap; the mails of a job form one thread.

Answers 4xx are temporary, 5xx permanent. The Message-ID is the delivery's, so that receivers
recognize a repetition.
"""

from __future__ import annotations

import html
import smtplib
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from email.headerregistry import Address
from email.message import EmailMessage
from typing import Annotated, Any, Final, Literal
from uuid import NAMESPACE_URL, uuid5

from pydantic import Field, TypeAdapter

from app.incidents.channels.kind import (
    ChannelKind,
    Note,
    OutgoingMessage,
    Secret,
    note_html,
    note_text,
)
from app.incidents.message import Alert, Message
from app.incidents.text import MAX_ALERTS, clip, lines_of, plain_text
from app.platform.outbound import DeliveryError, Outbound, ReceiverAnswer, excerpt

Mailbox = Annotated[str, Field(min_length=3, max_length=254, pattern=r"^[^@\s<>,;]+@[^@\s<>,;]+$")]

MAX_SUBJECT: Final = 200
PICTURE_ID: Final = "heatmap@paceline"
# SMTP codes from this value on are permanent failures.
PERMANENT: Final = 500


@dataclass(frozen=True, slots=True)
class MailConfig:
    """A mail relay and the recipients."""

    host: Annotated[str, Field(min_length=1, max_length=253, examples=["smtp.example.com"])]
    sender: Annotated[Mailbox, Field(examples=["paceline@example.com"])]
    recipients: Annotated[
        tuple[Mailbox, ...],
        Field(min_length=1, max_length=50, examples=["on-call@example.com"]),
    ]
    port: Annotated[int, Field(ge=1, le=65535)] = 587
    # ``starttls`` (port 587), ``tls`` from the first byte (465), or ``none`` (25) for a relay
    # within the operator's own network
    security: Annotated[
        Literal["starttls", "tls", "none"],
        Field(description="starttls on port 587, tls on 465, none within one's own network."),
    ] = "starttls"
    username: Annotated[str, Field(max_length=300)] | None = None
    password: Secret | None = None

    def __post_init__(self) -> None:
        if self.password is not None and self.security == "none":
            raise ValueError("a password is not sent without encryption")


def compose(config: MailConfig, message: Message, picture: bytes | None) -> EmailMessage:
    """Return the mail of a message."""
    mail = EmailMessage()
    domain = config.sender.rpartition("@")[2]
    mail["Subject"] = _subject(message.title)
    mail["From"] = Address("Paceline", addr_spec=config.sender)
    mail["To"] = ", ".join(config.recipients)
    mail["Date"] = message.at
    mail["Message-ID"] = f"<{message.id}@{domain}>"
    # The headers put all messages of a job into one thread.
    about = message.base_url + ("" if message.digest else message.job)
    thread = f"<{uuid5(NAMESPACE_URL, about)}@{domain}>"
    mail["In-Reply-To"] = mail["References"] = thread
    mail["Auto-Submitted"] = "auto-generated"
    mail.set_content(plain_text(message))
    mail.add_alternative(_html(message, pictured=picture is not None), subtype="html")
    if picture is not None:
        payload = mail.get_payload()
        assert isinstance(payload, list)  # noqa: S101 - it has two alternatives
        part = payload[1]
        assert isinstance(part, EmailMessage)  # noqa: S101 - as above
        part.add_related(picture, "image", "png", cid=f"<{PICTURE_ID}>", filename="heatmap.png")
    return mail


def _subject(title: str) -> str:
    """Return a title without control characters: names of hosts in it may have any character."""
    return clip("".join(sign if sign.isprintable() else " " for sign in title), MAX_SUBJECT)


def _html(message: Message, *, pictured: bool) -> str:
    parts = [f"<h2>{html.escape(message.title)}</h2>"]
    if pictured:
        parts.append(f'<p><img src="cid:{PICTURE_ID}" alt="Worker slowdown"></p>')
    parts += [_section(message, alert) for alert in message.alerts[:MAX_ALERTS]]
    more = len(message.alerts) - MAX_ALERTS
    if more > 0:
        parts.append(f"<p>And {more} more: {_link(message.job_url, message.job)}</p>")
    body = "\n".join(parts)
    return f'<!doctype html>\n<html lang="en"><body>\n{body}\n</body></html>\n'


def _section(message: Message, alert: Alert) -> str:
    lines = lines_of(alert, message.at)
    rows = "".join(
        f"<tr><th align='left' valign='top' nowrap>{html.escape(name)}</th>"
        f"<td>{html.escape(value)}</td></tr>"
        for name, value in lines.fields
    )
    evidence = "".join(f"<li>{html.escape(sentence)}</li>" for sentence in lines.evidence)
    links = f"{_link(alert.view_url, 'Open')} · {_link(alert.incident_url, alert.incident_link)}"
    return (
        f"<h3>{html.escape(lines.summary)}</h3>\n<table>{rows}</table>\n"
        + (f"<ul>{evidence}</ul>\n" if evidence else "")
        + f"<p>{links}</p>"
    )


def _link(url: str, text: str) -> str:
    return f'<a href="{html.escape(url)}">{html.escape(text)}</a>'


def send(config: MailConfig, outgoing: OutgoingMessage) -> ReceiverAnswer:
    """Send the message through the relay."""
    return _hand_over(
        config, compose(config, outgoing.message, outgoing.picture), outgoing.outbound
    )


def tell(config: MailConfig, note: Note, outbound: Outbound) -> ReceiverAnswer:
    """Send a note through the relay."""
    mail = EmailMessage()
    mail["Subject"] = _subject(note.title)
    mail["From"] = Address("Paceline", addr_spec=config.sender)
    mail["To"] = ", ".join(config.recipients)
    mail["Date"] = note.at
    mail["Message-ID"] = f"<{note.id}@{config.sender.rpartition('@')[2]}>"
    mail["Auto-Submitted"] = "auto-generated"
    mail.set_content(note_text(note))
    mail.add_alternative(note_html(note), subtype="html")
    return _hand_over(config, mail, outbound)


def _hand_over(config: MailConfig, mail: EmailMessage, outbound: Outbound) -> ReceiverAnswer:
    try:
        with _session(config, outbound) as session:
            refused = session.send_message(mail, config.sender, list(config.recipients))
    except smtplib.SMTPRecipientsRefused as error:
        codes = [code for code, _ in error.recipients.values()]
        answers = "; ".join(
            f"{name}: {code} {excerpt(text)}" for name, (code, text) in error.recipients.items()
        )
        raise DeliveryError(
            "smtp.refused",
            "The relay accepts none of the recipients.",
            permanent=all(code >= PERMANENT for code in codes),
            answer=ReceiverAnswer(codes[0], excerpt(answers)),
        ) from error
    except smtplib.SMTPResponseException as error:
        said = excerpt(error.smtp_error)
        raise DeliveryError(
            "smtp.refused",
            f"The relay answered {error.smtp_code}.",
            permanent=error.smtp_code >= PERMANENT,
            answer=ReceiverAnswer(error.smtp_code, said),
        ) from error
    except smtplib.SMTPNotSupportedError as error:
        raise DeliveryError("smtp.unsupported", str(error), permanent=True) from error
    except (smtplib.SMTPException, OSError) as error:
        outbound.left_s()  # raises the timeout if the attempt's time is over
        raise DeliveryError("connection.failed", f"The relay failed: {error}") from error
    if refused:
        names = ", ".join(sorted(refused))
        return ReceiverAnswer(250, f"Accepted, but not for {names}.")
    return ReceiverAnswer(250, "Taken.")


@contextmanager
def _session(config: MailConfig, outbound: Outbound) -> Iterator[smtplib.SMTP]:
    """Yield an SMTP session that is closed when the attempt's time limit is reached.

    The library's timeout applies to each read; a slow relay could hold the session for hours.
    """
    context = outbound.tls
    session = _Smtp(config, outbound, context)
    cut = threading.Timer(outbound.left_s(), session.cut)
    cut.daemon = True
    cut.start()
    try:
        session.connect(config.host, config.port)
        if config.security == "starttls":
            session.starttls(context=context)
        if config.username is not None and config.password is not None:
            session.login(config.username, config.password)
        yield session
    finally:
        cut.cancel()
        session.close()


class _Smtp(smtplib.SMTP):
    """An SMTP connection to a checked address; TLS verifies the host name."""

    def __init__(self, config: MailConfig, outbound: Outbound, context: ssl.SSLContext) -> None:
        super().__init__(timeout=outbound.left_s(), local_hostname="paceline.invalid")
        self._config, self._outbound, self._context = config, outbound, context
        # The library's attribute for the host name that `starttls` verifies.
        self._host = config.host

    def _get_socket(self, host: str, port: int, timeout: float) -> socket.socket:  # noqa: ARG002 - the library's signature
        connection = self._outbound.connect(host, port)
        if self._config.security == "tls":
            return self._context.wrap_socket(connection, server_hostname=host)
        return connection

    def cut(self) -> None:
        sock: Any = self.sock
        if sock is not None:
            try:
                sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                # The attempt finished before the timer closed the session.
                return


MAIL: Final = ChannelKind(
    name="email",
    title="E-mail",
    config=TypeAdapter(MailConfig),
    secrets=frozenset({"password"}),
    keep_secrets=frozenset({"sender", "recipients", "username"}),
    send=send,
    tell=tell,
    pictures=True,
)
