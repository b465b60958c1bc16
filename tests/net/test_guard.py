"""The guard on outward calls."""

from __future__ import annotations

import asyncio
import socket
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_env.errors import Forbidden, InvalidArguments, TransportError
from agent_env.net import OutwardGuard, bound_url, get_json, is_loopback, listen

pytestmark = pytest.mark.anyio

PUBLIC = ["93.184.216.34", "2606:2800:220:1:248:1893:25c8:1946", "64:ff9b::5db8:d822"]
LOCAL = ["127.0.0.1", "127.9.9.9", "::1", "10.0.0.1", "192.168.1.1", "172.16.0.1", "fd00::1", "::ffff:10.0.0.1"]
NEVER = ["169.254.169.254", "fe80::1", "fe80::1%eth0", "0.0.0.0", "::", "224.0.0.1", "ff02::1", "64:ff9b::a9fe:a9fe"]


@pytest.mark.parametrize("address", PUBLIC)
def test_public_addresses_pass(address: str) -> None:
    assert OutwardGuard(local=False).allows(address) and OutwardGuard(local=True).allows(address)


@pytest.mark.parametrize("address", LOCAL)
def test_private_addresses_pass_only_where_the_callers_are_local(address: str) -> None:
    assert not OutwardGuard(local=False).allows(address)
    assert OutwardGuard(local=True).allows(address)


@pytest.mark.parametrize("address", [*NEVER, "100.64.0.1", "240.0.0.1", "not an address", "2002:a00:1::"])
def test_other_addresses_never_pass_for_the_network(address: str) -> None:
    assert not OutwardGuard(local=False).allows(address)


@pytest.mark.parametrize("address", NEVER)
def test_link_local_multicast_and_unspecified_ones_never_pass(address: str) -> None:
    assert not OutwardGuard(local=True).allows(address)


@given(st.ip_addresses(v=4))
def test_an_ipv4_address_in_an_ipv6_one_is_judged_as_itself(address: IPv4Address) -> None:
    guard = OutwardGuard(local=False)
    embedded = [
        IPv6Address(f"::ffff:{address}"),
        IPv6Address(int(IPv6Address("64:ff9b::")) | int(address)),
        IPv6Address((0x2002 << 112) | (int(address) << 80)),
        IPv6Address((0x20010000 << 96) | (~int(address) & 0xFFFFFFFF)),
    ]
    assert [guard.allows(outer) for outer in embedded] == [guard.allows(address)] * 4


def test_the_owner_allows_networks_and_names_besides() -> None:
    guard = OutwardGuard.of(local=False, allow=["10.1.0.0/16", "169.254.1.1", "Receiver.internal."])
    assert guard.allows("10.1.2.3") and guard.allows("::ffff:10.1.2.3") and guard.allows("169.254.1.1")
    assert not guard.allows("10.2.0.1") and not guard.allows(ip_address("fd00::1"))
    assert guard.allows_name("receiver.INTERNAL") and not guard.allows_name("other.internal")


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST.", "127.0.0.1", "127.1.1.1", "::1", "[::1]", "::ffff:127.0.0.1"]
)
def test_loopback_hosts_are_known(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "10.0.0.1", "localhost.example.com", "example.com"])
def test_other_hosts_are_not_loopback(host: str) -> None:
    assert not is_loopback(host)


@pytest.mark.parametrize(
    "url", ["ftp://example.com", "file:///etc/passwd", "//example.com", "http://", "http://[::1", "http://h:99999/", ""]
)
async def test_what_is_no_http_url_is_the_callers_fault(url: str) -> None:
    with pytest.raises(InvalidArguments, match=r"must be an http or https URL|is not a URL"):
        await OutwardGuard(local=True).check(url)


async def test_a_password_in_a_url_is_refused_and_not_repeated() -> None:
    with pytest.raises(InvalidArguments) as refused:
        await OutwardGuard(local=True).check("http://me:pw@example.com/")
    assert "pw" not in refused.value.message


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "localhost", "2130706433", "0x7f.1", "[::1]", "[::ffff:127.0.0.1]", "169.254.169.254"]
)
async def test_every_way_to_write_a_local_address_is_refused_for_the_network(host: str) -> None:
    with pytest.raises(Forbidden, match="not a public address; the owner of the server can allow it"):
        await OutwardGuard(local=False).check(f"http://{host}:8000/hook")


async def test_local_callers_may_name_local_addresses() -> None:
    await OutwardGuard(local=True).check("http://localhost:8000/hook")
    await OutwardGuard.of(local=False, allow=["localhost"]).check("http://localhost:8000/hook")


async def test_a_name_that_does_not_resolve_says_so() -> None:
    with pytest.raises(TransportError, match=r"'nothing\.invalid' does not resolve"):
        await OutwardGuard(local=True).check("http://nothing.invalid/")


async def test_a_name_passes_only_when_all_its_addresses_do(monkeypatch: pytest.MonkeyPatch) -> None:
    resolve(monkeypatch, [["93.184.216.34", "10.0.0.1"]])
    with pytest.raises(Forbidden):
        await OutwardGuard(local=False).check("http://two-faced.example/")


async def test_a_name_that_changes_after_the_check_is_refused_at_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        served.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}")
        await writer.drain()
        writer.close()

    listener = listen()
    async with await asyncio.start_server(answer, sock=listener):
        url = bound_url(listener).replace("127.0.0.1", "rebinding.example")
        resolve(monkeypatch, [["93.184.216.34"], ["127.0.0.1"]])
        with pytest.raises(Forbidden, match=r"'rebinding\.example', which is not a public address"):
            await get_json(url, guard=OutwardGuard(local=False))
        assert served == []
        resolve(monkeypatch, [["127.0.0.1"], ["127.0.0.1"]])
        assert await get_json(url, guard=OutwardGuard(local=True)) == {}
        assert len(served) == 1


def resolve(monkeypatch: pytest.MonkeyPatch, answers: list[list[str]]) -> None:
    """Makes the name server give these addresses, one answer a look-up."""

    async def getaddrinfo(self: Any, host: str, port: Any, **_: Any) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in answers.pop(0)]

    monkeypatch.setattr(asyncio.BaseEventLoop, "getaddrinfo", getaddrinfo)
