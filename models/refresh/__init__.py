"""Training of refresh models: what serving a cached list loses, learned from a request log."""
