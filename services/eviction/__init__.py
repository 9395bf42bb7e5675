"""The eviction sidecar: keeps the order in which cache entries go, and enforces it over a real Redis."""
