"""Addresses, as people write them and as gRPC takes them."""

from __future__ import annotations

import ipaddress
import re

_HOST_NAME = re.compile(r"[A-Za-z0-9._-]+")


def grpc_target(target: str) -> str:
    """The gRPC name of `target`; raises ValueError that quotes the part at fault.

    "ads.example:7400"              one host; calls take turns over all its addresses
    "10.0.0.1:7400,10.0.0.2:7400"   several addresses of one IP version; calls take turns
    "unix:/run/ads.sock"            anything with a scheme goes to gRPC unchanged (dns:, ipv4:, unix:, xds:)
    """
    if target.partition(":")[0] in ("dns", "ipv4", "ipv6", "unix", "unix-abstract", "xds"):
        return target
    addresses = target.split(",")
    versions = [_ip_version(address) for address in addresses]
    if len(addresses) == 1:
        return target
    if None in versions:
        raise ValueError(
            f"target: {addresses[versions.index(None)]!r} is not an IP address; give several servers as IP "
            "addresses, or as one DNS name that resolves to all of them"
        )
    if len(set(versions)) > 1:
        raise ValueError(f"target: {target!r} mixes IPv4 and IPv6")
    return f"ipv{versions[0]}:{target}"


def _ip_version(address: str) -> int | None:
    """4 or 6 for an IP address with a port, None for a host name with a port."""
    host, colon, port = address.rpartition(":")
    if not (colon and host and port.isascii() and port.isdigit() and 0 < int(port) <= 65535):
        raise ValueError(f"target: {address!r} is not HOST:PORT with a port in 1..65535")
    bracketed = host.startswith("[") and host.endswith("]")
    try:
        version = ipaddress.ip_address(host[1:-1] if bracketed else host).version
    except ValueError:
        version = None
    if bracketed != (version == 6):
        raise ValueError(
            f"target: {address!r} is not HOST:PORT; IPv6 addresses, and only they, go in brackets"
        )
    if version is None and not _HOST_NAME.fullmatch(host):
        raise ValueError(f"target: {address!r} is not HOST:PORT; the host is no DNS name or IP address")
    return version
