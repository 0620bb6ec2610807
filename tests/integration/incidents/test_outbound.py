"""The guard of outbound requests: refused addresses, connections, and time limits."""

from __future__ import annotations

import http.client
import ipaddress
import socket
import ssl
import threading
import time
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
import trustme

from app.platform.outbound import AddressGuard, DeliveryError, Outbound, check, check_url
from benchmarks.support.receiver import Reply
from tests.support.receiver import Receiver

LOOPBACK = (ipaddress.ip_network("127.0.0.1/32"),)
NAME = "hooks.example.com"


def at(*addresses: str) -> AddressGuard:
    """Return a guard whose resolver gives these addresses for every name."""
    return AddressGuard(LOOPBACK, lambda _host, _port: addresses)


@pytest.mark.parametrize(
    "address",
    [
        "0.0.0.0",  # noqa: S104 - refused
        "10.1.2.3",
        "100.64.0.1",
        "127.0.0.2",
        "169.254.169.254",
        "172.16.0.1",
        "192.0.0.1",
        "192.168.1.1",
        "198.18.0.1",
        "203.0.113.1",
        "224.0.0.1",
        "239.1.1.1",
        "240.0.0.1",
        "255.255.255.255",
        "::",
        "::1",
        "::ffff:10.0.0.1",
        "::ffff:8.8.8.8",
        "::7f00:1",
        "::ffff:0:127.0.0.1",
        "::ffff:0:8.8.8.8",
        "64:ff9b::a00:1",
        "64:ff9b::8.8.8.8",
        "64:ff9b:1::1",
        "100::1",
        "2001::1",
        "2001:0:808:808::f7f7:f7f7",
        "4000::1",
        "2001:db8::1",
        "2002:a00:1::1",
        "2002:808:808::1",
        "fc00::1",
        "fd12::1",
        "fe80::1",
        "fe80::1%eth0",
        "fec0::1",
        "ff02::1",
        "ff0e::1",
    ],
)
def test_addresses_that_are_not_on_the_internet_are_refused(address: str) -> None:
    with pytest.raises(DeliveryError, match="not on the public internet") as refused:
        at(address).addresses(NAME, 443, 1.0)
    assert refused.value.code == "address.refused"
    assert refused.value.permanent


@pytest.mark.parametrize("address", ["8.8.8.8", "1.1.1.1", "2606:4700:4700::1111"])
def test_addresses_on_the_internet_are_permitted(address: str) -> None:
    assert at(address).addresses(NAME, 443, 1.0) == [address]


def test_one_refused_address_refuses_the_name() -> None:
    with pytest.raises(DeliveryError):
        at("8.8.8.8", "10.0.0.1").addresses(NAME, 443, 1.0)


def test_only_what_the_operator_allows_is_allowed() -> None:
    guard = AddressGuard((ipaddress.ip_network("10.1.0.0/16"),), lambda *_: ["10.1.2.3"])
    assert guard.addresses(NAME, 443, 1.0) == ["10.1.2.3"]
    with pytest.raises(DeliveryError):
        AddressGuard(guard.allowed, lambda *_: ["10.2.0.1"]).addresses(NAME, 443, 1.0)


# Of each form the public address 8.8.8.8 and the private address 10.0.0.1, in a network that the
# operator allows.
EMBEDDING = [
    ("::/96", "::8.8.8.8", "::10.0.0.1"),
    ("::ffff:0:0/96", "::ffff:8.8.8.8", "::ffff:10.0.0.1"),
    ("::ffff:0:0:0/96", "::ffff:0:8.8.8.8", "::ffff:0:10.0.0.1"),
    ("64:ff9b::/96", "64:ff9b::8.8.8.8", "64:ff9b::10.0.0.1"),
    ("64:ff9b:1::/48", "64:ff9b:1::8.8.8.8", "64:ff9b:1::10.0.0.1"),
    ("2002::/16", "2002:808:808::1", "2002:a00:1::1"),
    ("2001::/32", "2001:0:808:808::f7f7:f7f7", "2001:0:808:808::f5ff:fffe"),
    ("2001::/32", "2001:0:808:808::f7f7:f7f7", "2001:0:a00:1::f7f7:f7f7"),
]


@pytest.mark.parametrize(("network", "public", "private"), EMBEDDING)
def test_the_ipv4_address_within_an_allowed_ipv6_address_has_to_be_allowed_too(
    network: str, public: str, private: str
) -> None:
    allowed = (ipaddress.ip_network(network),)
    AddressGuard(allowed, lambda *_: [public]).addresses(NAME, 443, 1.0)
    with pytest.raises(DeliveryError, match="not on the public internet"):
        AddressGuard(allowed, lambda *_: [private]).addresses(NAME, 443, 1.0)
    both = (*allowed, ipaddress.ip_network("10.0.0.0/8"))
    AddressGuard(both, lambda *_: [private]).addresses(NAME, 443, 1.0)


@pytest.mark.parametrize("address", ["::1", "fd12::7"])
def test_an_allowed_ipv6_address_that_contains_no_other_is_allowed(address: str) -> None:
    guard = AddressGuard((ipaddress.ip_network(address),), lambda *_: [address])
    assert guard.addresses(NAME, 443, 1.0) == [address]


@pytest.mark.parametrize("value", ["a\r\nX: 1", "a\n", "\x00", "\N{SNOWMAN}"])
def test_a_header_that_is_not_printable_ascii_is_not_sent(value: str, receiver: Receiver) -> None:
    with Outbound(at(), 5.0) as outbound, pytest.raises(DeliveryError) as refused:
        outbound.post(receiver.url, b"{}", {"Authorization": value})
    assert (refused.value.code, refused.value.permanent) == ("header.invalid", True)
    assert value not in refused.value.sentence
    assert receiver.got == []


@pytest.mark.parametrize(
    "url",
    ["http://127.1/", "http://2130706433/", "http://0x7f.1/", "http://[::1]/", "http://localhost/"],
)
def test_every_spelling_of_this_machine_is_refused(url: str, receiver: Receiver) -> None:
    host_and_port = url.rstrip("/") + f":{receiver.port}/"
    with Outbound(AddressGuard(), 5.0) as outbound, pytest.raises(DeliveryError):
        outbound.post(host_and_port, b"{}", {})
    assert receiver.got == []


@pytest.mark.parametrize(
    "url",
    [
        "ftp://example.com/",
        "file:///etc/passwd",
        "gopher://example.com/",
        "http://user:password@example.com/",
        "http:///path",
        "http://example.com:99999/",
        "http://exa mple.com/",
        "http://exämple.com/",
        "not a url",
    ],
)
def test_an_address_outside_of_the_web_is_refused(url: str) -> None:
    with pytest.raises(DeliveryError) as refused:
        check_url(url)
    assert refused.value.code == "url.invalid"


def test_the_connection_goes_to_the_address_that_was_checked_and_the_name_stays(
    receiver: Receiver,
) -> None:
    looked_up = []

    def resolve(host: str, _port: int) -> Sequence[str]:
        looked_up.append(host)
        # A second lookup would give another address: DNS rebinding.
        return ["127.0.0.1"] if len(looked_up) == 1 else ["169.254.169.254"]

    with Outbound(AddressGuard(LOOPBACK, resolve), 5.0) as outbound:
        check(outbound.post(f"http://{NAME}:{receiver.port}/hook?x=1", b"{}", {}))
    assert looked_up == [NAME]
    [got] = receiver.got
    assert got.headers["host"] == f"{NAME}:{receiver.port}"
    assert got.path == "/hook?x=1"


def test_proxies_of_the_environment_are_not_used(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with Outbound(at("127.0.0.1"), 5.0) as outbound:
        check(outbound.post(f"http://{NAME}:{receiver.port}/", b"{}", {}))
    assert len(receiver.got) == 1


def test_another_address_of_the_name_is_tried_where_one_does_not_answer(
    receiver: Receiver,
) -> None:
    guard = AddressGuard(
        (ipaddress.ip_network("127.0.0.0/8"),), lambda *_: ["127.0.0.9", "127.0.0.1"]
    )
    with Outbound(guard, 5.0) as outbound:
        check(outbound.post(f"http://{NAME}:{receiver.port}/", b"{}", {}))
    assert len(receiver.got) == 1


def test_a_resolver_that_hangs_does_not_hold_the_attempt() -> None:
    free = threading.Event()

    def resolve(_host: str, _port: int) -> Sequence[str]:
        free.wait(30)
        return ["127.0.0.1"]

    started_s = time.monotonic()
    with (
        Outbound(AddressGuard(LOOPBACK, resolve), 0.3) as outbound,
        pytest.raises(DeliveryError) as late,
    ):
        outbound.post(f"http://{NAME}/", b"{}", {})
    assert late.value.code == "dns.failed"
    assert time.monotonic() - started_s < 25
    free.set()


@pytest.mark.parametrize("drip_s", [0.05, 60.0])
def test_a_receiver_that_drips_or_hangs_ends_with_the_attempt(
    receiver: Receiver, drip_s: float
) -> None:
    receiver.answer = lambda _: Reply(200, b"x" * 10_000, drip_s=drip_s)
    with Outbound(at("127.0.0.1"), 0.5) as outbound, pytest.raises(DeliveryError) as late:
        outbound.post(f"http://{NAME}:{receiver.port}/", b"{}", {})
    assert late.value.code == "timeout"
    assert not late.value.permanent


def test_a_connection_that_is_not_accepted_is_a_fault_that_passes() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    with Outbound(at("127.0.0.1"), 5.0) as outbound, pytest.raises(DeliveryError) as failed:
        outbound.post(f"http://{NAME}:{port}/", b"{}", {})
    assert failed.value.code == "connection.failed"
    assert not failed.value.permanent


def test_an_endless_answer_is_not_read_to_its_end(receiver: Receiver) -> None:
    receiver.answer = lambda _: Reply(200, b"x" * 20_000_000)
    with Outbound(at("127.0.0.1"), 10.0) as outbound:
        answer = outbound.post(f"http://{NAME}:{receiver.port}/", b"{}", {})
    assert len(answer.body) <= 64 * 1024
    assert len(answer.answer.text) <= 500


class _Tls:
    """A TLS server of one name, with a certificate signed by the test's authority."""

    def __init__(self, authority: trustme.CA, name: str) -> None:
        self.names: list[str | None] = []
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert(name).configure_cert(context)
        context.sni_callback = lambda _socket, asked, _context: self.names.append(asked)

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                self.send_response(http.client.NO_CONTENT)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        self.server.handle_error = lambda *_: None  # type: ignore[method-assign]  # refused on purpose
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def tls_server(authority: trustme.CA) -> Iterator[_Tls]:
    running = _Tls(authority, NAME)
    running.thread.start()
    yield running
    running.server.shutdown()
    running.server.server_close()
    running.thread.join()


def _trusting(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return context


def test_tls_asks_for_the_name_and_verifies_it(authority: trustme.CA, tls_server: _Tls) -> None:
    port = tls_server.server.server_port
    with Outbound(at("127.0.0.1"), 10.0, tls=_trusting(authority)) as outbound:
        assert outbound.post(f"https://{NAME}:{port}/", b"{}", {}).status == 204
    assert tls_server.names == [NAME]


def test_a_certificate_of_another_name_is_refused(authority: trustme.CA, tls_server: _Tls) -> None:
    port = tls_server.server.server_port
    with (
        Outbound(at("127.0.0.1"), 10.0, tls=_trusting(authority)) as outbound,
        pytest.raises(DeliveryError, match=r"(?i)certificate"),
    ):
        outbound.post(f"https://other.example.com:{port}/", b"{}", {})


def test_a_certificate_of_no_authority_is_refused(tls_server: _Tls) -> None:
    port = tls_server.server.server_port
    with (
        Outbound(at("127.0.0.1"), 10.0) as outbound,
        pytest.raises(DeliveryError, match=r"(?i)certificate"),
    ):
        outbound.post(f"https://{NAME}:{port}/", b"{}", {})
