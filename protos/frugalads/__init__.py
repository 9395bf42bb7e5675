"""Frugal Ads over gRPC: the protos, their stubs, and the Python client.

frugalads.client         clients, blocking and asyncio; start here
frugalads.scoring.v1     ranked ads for a query; clicks; live ads
frugalads.retrieval.v1   candidate ads near a vector
frugalads.inference.v1   vectors and click probabilities
frugalads.eviction.v1    which cache entries go first
frugalads.errors.v1      the details of a failed call
"""
