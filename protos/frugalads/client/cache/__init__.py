"""A cache in Redis that knows what its entries cost: `Cache` for threads, `AsyncCache` for asyncio.

It measures each computation, shares it between all who wait for it, refreshes early, and reports to the
eviction sidecar (`frugalads evict`), which keeps what is dear to compute. Needs the package redis
(`pip install frugalads[cache]`).
"""

from frugalads.client.cache.asynchronous import AsyncCache
from frugalads.client.cache.base import Cost, HashField
from frugalads.client.cache.blocking import Cache

__all__ = ["AsyncCache", "Cache", "Cost", "HashField"]
