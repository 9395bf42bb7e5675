"""Eviction orders: which cache entry goes first, by what it costs to compute again."""
