"""A client that writes and reports as fast as it can: `full_speed_writer.py REDIS_PORT SIDECAR WRITES`.

Values are 50 B to 1 MB, log-uniform. Prints writes per second, the most memory it saw used, and the p99 of a
GET in between, seconds.
"""

from __future__ import annotations

import queue
import random
import sys
import threading
import time
from collections.abc import Iterable

import grpc
import redis

from frugalads.eviction.v1 import eviction_pb2, eviction_pb2_grpc
from services.core.eviction.priority import expire_at_ms


class Clock:
    """L as the sidecar last told it."""

    def __init__(self) -> None:
        self.now = 0

    def listen(self, responses: Iterable[eviction_pb2.ReportResponse]) -> None:
        for response in responses:
            self.now = response.clock


def main(port: int, target: str, writes: int) -> None:
    client, draw, clock = redis.Redis(port=port, socket_timeout=10), random.Random(1), Clock()
    reports: queue.Queue[eviction_pb2.ReportRequest | None] = queue.Queue(100)
    stub = eviction_pb2_grpc.EvictionServiceStub(grpc.insecure_channel(target))
    listener = threading.Thread(target=clock.listen, args=(stub.Report(iter(reports.get, None)),))
    listener.start()
    written, batch, worst_bytes, waits_s = 0, 0, 0, []
    begin = time.monotonic()
    while written < writes:
        pipe, events = client.pipeline(transaction=False), []
        for _ in range(8):
            key, cost = b"frugalads:list:%d" % written, draw.randrange(10**6)
            value, expiry = b"x" * int(50 * 20_000 ** draw.random()), expire_at_ms(clock.now + cost, written)
            pipe.set(key, value, pxat=expiry)
            events.append(
                eviction_pb2.Event(
                    kind=eviction_pb2.EVENT_KIND_ADMIT,
                    key=key,
                    size_bytes=len(key) + len(value),
                    cost_us=cost,
                    sequence=written,
                    expire_at_ms=expiry,
                )
            )
            written += 1
        pipe.execute()
        batch += 1
        reports.put(eviction_pb2.ReportRequest(batch=batch, events=events))
        start = time.monotonic()
        client.get(b"frugalads:list:%d" % draw.randrange(written))
        waits_s.append(time.monotonic() - start)
        worst_bytes = max(worst_bytes, int(client.info("memory")["used_memory"]))
    reports.put(None)
    listener.join()
    print(written / (time.monotonic() - begin), worst_bytes, sorted(waits_s)[int(0.99 * len(waits_s))])


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
