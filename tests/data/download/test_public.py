"""Which addresses are public, as tables: nothing is connected to."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from mufin.data.download.addresses import SPECIAL4, SPECIAL6, Failure, is_public, resolve

INSIDE4 = [
    "0.0.0.0", "0.1.2.3", "10.0.0.1", "10.255.255.255", "100.64.0.1", "100.100.100.200",
    "100.127.255.255", "127.0.0.1", "127.1.2.3", "168.63.129.16", "169.254.0.1", "169.254.169.254",
    "172.16.0.1", "172.31.255.255", "192.0.0.1", "192.0.0.170", "192.0.0.192", "192.0.2.1",
    "192.31.196.1", "192.52.193.1", "192.88.99.1", "192.168.1.1", "192.175.48.1", "198.18.0.1",
    "198.19.255.255", "198.51.100.1", "203.0.113.1", "224.0.0.1", "239.255.255.255", "240.0.0.1",
    "255.255.255.255",
]  # fmt: skip
OUTSIDE4 = [
    "1.1.1.1", "8.8.8.8", "9.255.255.255", "11.0.0.0", "93.184.216.34", "100.63.255.255", "100.128.0.0",
    "126.255.255.255", "128.0.0.0", "168.63.129.15", "168.63.129.17", "169.253.255.255", "169.255.0.0",
    "172.15.255.255", "172.32.0.0", "191.255.255.255", "192.0.1.0", "192.0.3.0", "192.167.255.255",
    "192.169.0.0", "198.17.255.255", "198.20.0.0", "223.255.255.255",
]  # fmt: skip
INSIDE6 = [
    "::", "::1", "::2", "100::1", "100:0:0:1::1", "fe80::1", "fec0::1", "feff::1", "fc00::1",
    "fd00:ec2::254", "ff02::1", "ff0e::1", "5f00::1", "64:ff9b:1::1", "64:ff9b:1::808:808",
    "64:ff9b:1:ffff::", "64:ff9b:0:1::808:808", "64:ff9c::808:808", "2001::1", "2001:0:808:808::1",
    "2001:1::1", "2001:2::1", "2001:3::1", "2001:4:112::1", "2001:10::1", "2001:20::1", "2001:30::1",
    "2001:1ff:ffff::1", "2001:db8::1", "2002:7f00:1::", "2002:a00:1::1", "2620:4f:8000::1", "3fff::1",
    "3fff:fff:ffff::1", "4000::1", "8000::1", "1fff:ffff::1", "fe80::1%eth0", "2606:4700::1111%eth0",
    "::ffff:8.8.8.8%1",
]  # fmt: skip
OUTSIDE6 = [
    "2000::1", "2001:200::1", "2001:4860:4860::8888", "2001:db7:ffff::1", "2001:db9::1", "2003::1",
    "2606:4700:4700::1111", "2606:2800:220:1:248:1893:25c8:1946", "2620:4f:7fff::1", "2620:4f:8001::1",
    "2a00:1450:4001::1", "3ffe:ffff::1", "3fff:1000::1",
]  # fmt: skip
EMBEDDED = {  # how IPv6 writes an IPv4 address, and whether a public one stays public
    "mapped": ("::ffff:{a:02x}{b:02x}:{c:02x}{d:02x}", True),
    "NAT64": ("64:ff9b::{a:02x}{b:02x}:{c:02x}{d:02x}", True),
    "ISATAP": ("2606:4700::5efe:{a:02x}{b:02x}:{c:02x}{d:02x}", True),
    "ISATAP, universal": ("2606:4700::200:5efe:{a:02x}{b:02x}:{c:02x}{d:02x}", True),
    "compatible": ("::{a:02x}{b:02x}:{c:02x}{d:02x}", False),
    "translated": ("::ffff:0:{a:02x}{b:02x}:{c:02x}{d:02x}", False),
    "local NAT64": ("64:ff9b:1::{a:02x}{b:02x}:{c:02x}{d:02x}", False),
    "local NAT64, /48": ("64:ff9b:1:{a:02x}{b:02x}:{c:02x}:{d:02x}00::", False),
    "6to4": ("2002:{a:02x}{b:02x}:{c:02x}{d:02x}::1", False),
    "Teredo server": ("2001:0:{a:02x}{b:02x}:{c:02x}{d:02x}::1", False),
    "link-local ISATAP": ("fe80::5efe:{a:02x}{b:02x}:{c:02x}{d:02x}", False),
}


def test_tables() -> None:
    assert [text for text in INSIDE4 + INSIDE6 if is_public(text)] == []
    assert [text for text in OUTSIDE4 + OUTSIDE6 if not is_public(text)] == []


@pytest.mark.parametrize("form", EMBEDDED)
def test_embedded_addresses(form: str) -> None:
    pattern, stays = EMBEDDED[form]
    for text in INSIDE4 + OUTSIDE4:
        a, b, c, d = map(int, text.split("."))
        embedded = pattern.format(a=a, b=b, c=c, d=d)
        assert is_public(embedded) == (stays and text in OUTSIDE4), f"{text} as {embedded}"


@pytest.mark.parametrize(
    "written", ["::127.0.0.1", "::ffff:127.0.0.1", "::ffff:0:127.0.0.1", "64:ff9b::10.0.0.1"]
)
def test_embedded_in_dots(written: str) -> None:
    assert not is_public(written)


def test_first_and_last_of_every_special_range() -> None:
    for network in [*SPECIAL4, *SPECIAL6]:
        assert not is_public(str(network[0]))
        assert not is_public(str(network[-1]))


@pytest.mark.parametrize(
    "text",
    ["", "nonsense", "8.8.8", "8.8.8.8.8", "08.8.8.8", "0x8.8.8.8", " 8.8.8.8", "1:2", "[::1]", "8.8.8.8/32"],
)
def test_no_address_is_not_public(text: str) -> None:
    assert not is_public(text)


@pytest.mark.parametrize(
    "address", ["192.0.0.192", "168.63.129.16", "::7f00:1", "64:ff9b:1::808:808", "fec0::1"]
)
def test_a_name_with_one_address_inside_is_refused(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def look_up(host: str, port: int, **_: Any) -> list[Any]:
        return [
            (socket.AF_INET, 1, 6, "", ("93.184.216.34", port)),
            (socket.AF_INET6, 1, 6, "", (address, port)),
        ]

    monkeypatch.setattr("mufin.data.download.addresses.socket.getaddrinfo", look_up)
    with pytest.raises(Failure, match=f"refused: mixed.example is at {address}"):
        resolve("mixed.example", 80, allow_private=False)
    assert resolve("mixed.example", 80, allow_private=True) == ["93.184.216.34", address]
