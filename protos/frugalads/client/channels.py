"""Channels whose every call has a deadline, retries and typed errors, for any service of Frugal Ads."""

from __future__ import annotations

import json

import grpc

from frugalads.client.interceptors import AsyncCalls, AsyncStreams, Calls
from frugalads.client.options import Options
from frugalads.client.targets import grpc_target

# Streams are not retried: replaying one would repeat what the server has already taken from it.
_STREAMS = ({"service": "frugalads.eviction.v1.EvictionService", "method": "Report"},)


class Endpoint:
    """Where and how to connect, checked: raises ValueError for a bad target, else as `Tls.credentials`.

    It holds no sockets and no threads until it opens a channel, so it may be made before a fork.
    """

    def __init__(self, target: str, options: Options | None = None) -> None:
        options = options or Options()
        self._target = grpc_target(target)
        if options.tls and not options.tls.server_name and "," in self._target:
            raise ValueError("tls: server_name is needed with several addresses")
        self._timeout_s = options.timeout_s
        self._credentials = options.tls.credentials() if options.tls else None
        self._arguments = _arguments(options)

    def open(self) -> grpc.Channel:
        """A channel for blocking stubs, usable in this process only."""
        if self._credentials is None:
            channel = grpc.insecure_channel(self._target, self._arguments)
        else:
            channel = grpc.secure_channel(self._target, self._credentials, self._arguments)
        return grpc.intercept_channel(channel, Calls(self._timeout_s))

    def open_async(self) -> grpc.aio.Channel:
        """A channel for asyncio stubs, usable in the running event loop only."""
        calls = [AsyncCalls(self._timeout_s), AsyncStreams()]
        if self._credentials is None:
            return grpc.aio.insecure_channel(self._target, self._arguments, interceptors=calls)
        return grpc.aio.secure_channel(self._target, self._credentials, self._arguments, interceptors=calls)


def connect(target: str, options: Options | None = None) -> grpc.Channel:
    """A channel for the generated stubs of any service. Returns at once; the first call connects.

    Deadlines, retries, TLS, keepalive and errors are those of `Client`. Raises what `Endpoint` raises.

        with connect("127.0.0.1:7401") as channel:
            answer = RetrievalServiceStub(channel).Search(SearchRequest(vector=vector, k=10))
    """
    return Endpoint(target, options).open()


def connect_async(target: str, options: Options | None = None) -> grpc.aio.Channel:
    """`connect` for asyncio: call it within the event loop that will use the channel."""
    return Endpoint(target, options).open_async()


def _arguments(options: Options) -> list[tuple[str, int | str]]:
    arguments: list[tuple[str, int | str]] = [
        ("grpc.service_config", json.dumps(_service_config(options.attempts))),
        # Otherwise every name is also looked up as a DNS TXT record, which may hold another config.
        ("grpc.service_config_disable_resolution", 1),
        ("grpc.max_send_message_length", options.max_message_bytes),
        ("grpc.max_receive_message_length", options.max_message_bytes),
        # A call larger than this buffer would silently lose its retries.
        ("grpc.per_rpc_retry_buffer_size", options.max_message_bytes),
        ("grpc.keepalive_time_ms", round(options.keepalive_s * 1000)),
        ("grpc.keepalive_timeout_ms", 10_000),
        # A proxy that the environment names for web pages is not on the way to an ads server.
        ("grpc.enable_http_proxy", 0),
        # A restarted server is found again within the retries of a call, and within 5 s after a long absence.
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 5_000),
    ]
    if options.tls is not None and options.tls.server_name:
        arguments.append(("grpc.ssl_target_name_override", options.tls.server_name))
    return arguments


def _service_config(attempts: int) -> dict[str, object]:
    """gRPC service config (gRFC A2, A6). Every unary method of Frugal Ads is safe to repeat."""
    unary: dict[str, object] = {"name": [{}]}
    if attempts > 1:
        unary["retryPolicy"] = {
            "maxAttempts": attempts,
            "initialBackoff": "0.05s",
            "maxBackoff": "1s",
            "backoffMultiplier": 3,
            "retryableStatusCodes": ["UNAVAILABLE"],
        }
    return {
        "loadBalancingConfig": [{"round_robin": {}}],
        "methodConfig": [unary, {"name": list(_STREAMS)}],
        "retryThrottling": {"maxTokens": 100, "tokenRatio": 0.1},
    }
