"""Which IP addresses belong to the public internet.

IPv6 is allowed by list (global unicast without its special ranges), IPv4 refused by list, both from the IANA
registries of special-purpose addresses. `ipaddress.is_global` is not used: it differs between versions of
Python, and allows some of the listed ranges.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

SPECIAL4 = [
    IPv4Network(network)
    for network in (
        "0.0.0.0/8",  # this host, this network
        "10.0.0.0/8",  # private
        "100.64.0.0/10",  # carrier-grade NAT; metadata of some clouds (100.100.100.200)
        "127.0.0.0/8",  # loopback
        "168.63.129.16/32",  # the platform services of Azure, a public address that never leaves its host
        "169.254.0.0/16",  # link-local; metadata of most clouds
        "172.16.0.0/12",  # private
        "192.0.0.0/24",  # protocol assignments; metadata of some clouds (192.0.0.192)
        "192.0.2.0/24",  # documentation
        "192.31.196.0/24",  # AS112, a sink for queries of private names
        "192.52.193.0/24",  # multicast tunnels (AMT)
        "192.88.99.0/24",  # 6to4 relays, deprecated
        "192.168.0.0/16",  # private
        "192.175.48.0/24",  # AS112
        "198.18.0.0/15",  # benchmarks
        "198.51.100.0/24",  # documentation
        "203.0.113.0/24",  # documentation
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved, and broadcast
    )
]
GLOBAL_UNICAST = IPv6Network("2000::/3")
SPECIAL6 = [
    IPv6Network(network)
    for network in (
        "2001::/23",  # protocol assignments: Teredo, benchmarks, ORCHID, AMT, AS112
        "2001:db8::/32",  # documentation
        "2002::/16",  # 6to4: a tunnel to the IPv4 address inside
        "2620:4f:8000::/48",  # AS112
        "3fff::/20",  # documentation
    )
]
MAPPED, NAT64 = IPv6Network("::ffff:0:0/96"), IPv6Network("64:ff9b::/96")
ISATAP = 0x5EFE  # with either value of the universal bit, in front of the IPv4 address
UNIVERSAL = 0x0200_0000


def is_public(text: str) -> bool:
    """Return whether a host at this address is on the public internet.

    An IPv6 address that stands for an IPv4 address (mapped, NAT64) is judged as that. The other embedded
    forms (6to4, Teredo, IPv4-compatible, translated, local NAT64) are refused whatever they contain: none of
    them is global unicast today. A NAT64 prefix that a network chose for itself cannot be recognised.

    >>> [is_public(a) for a in ("93.184.216.34", "127.0.0.1", "::ffff:10.0.0.1", "169.254.169.254")]
    [True, False, False, False]
    """
    if "%" in text:  # a zone: a link-local address
        return False
    try:
        address = ip_address(text)
    except ValueError:
        return False
    return _public4(address) if isinstance(address, IPv4Address) else _public6(address)


def _public4(address: IPv4Address) -> bool:
    return not any(address in network for network in SPECIAL4)


def _public6(address: IPv6Address) -> bool:
    last = IPv4Address(int(address) & 0xFFFF_FFFF)
    if address in MAPPED or address in NAT64:
        return _public4(last)
    if address not in GLOBAL_UNICAST or any(address in network for network in SPECIAL6):
        return False
    before = int(address) >> 32 & 0xFFFF_FFFF
    return before & ~UNIVERSAL != ISATAP or _public4(last)
