"""The policy simulator: a request log replayed against a cache of scored lists."""
