"""Channels to the services that a service calls.

Re-connection starts at 100 ms and is capped at 1 s, so that a restarted service is used again within
seconds; `min_reconnect_backoff_ms` is how long one attempt may take, not how long to wait before it.
Keepalive pings are those that our servers permit (`server._options`); a peer that hangs is found by its
health probe and by the deadline of each call, not by the transport. Calls carry the request's identity
(`tracing`).
"""

from __future__ import annotations

import grpc

from services.runtime.tls import ClientTls
from services.runtime.tracing import PassIdentity


def open_channel(target: str, tls: ClientTls | None, max_message_bytes: int) -> grpc.aio.Channel:
    """A channel to `target` (host:port, or a resolver URI such as dns:///name:port)."""
    options = [
        ("grpc.max_receive_message_length", max_message_bytes),
        ("grpc.max_send_message_length", max_message_bytes),
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.min_reconnect_backoff_ms", 1_000),
        ("grpc.max_reconnect_backoff_ms", 1_000),
        ("grpc.keepalive_time_ms", 30_000),
        ("grpc.keepalive_timeout_ms", 5_000),
        ("grpc.lb_policy_name", "round_robin"),
        ("grpc.enable_http_proxy", 0),
    ]
    identity = [PassIdentity()]
    if tls is None:
        return grpc.aio.insecure_channel(target, options, interceptors=identity)
    credentials = grpc.ssl_channel_credentials(tls.roots, tls.key, tls.certificate)
    return grpc.aio.secure_channel(target, credentials, options, interceptors=identity)
