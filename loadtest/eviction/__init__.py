"""Measurement of eviction orders: request streams, costs and sizes of entries, bounds, report."""
