"""Addresses and networks as settings have them, compared with where connections come from."""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Final, TypeAlias

Network: TypeAlias = IPv4Network | IPv6Network

LOOPBACK: Final = ("127.0.0.0/8", "::1/128")


def parse_network(text: str) -> Network:
    """An address or a network; one of IPv4 addresses as IPv6 writes them is that of the IPv4 addresses.

    Raises ``ValueError`` for anything else.
    """
    network = ip_network(text, strict=False)
    if isinstance(network, IPv6Network) and network.prefixlen >= 96:
        mapped = network.network_address.ipv4_mapped
        if mapped is not None:
            return IPv4Network((int(mapped), network.prefixlen - 96))
    return network


def is_within(host: str, networks: Iterable[Network]) -> bool:
    """Whether an address lies in one of some networks; what is no address does not."""
    try:
        address = ip_address(host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return any((mapped or address) in network for network in networks)
