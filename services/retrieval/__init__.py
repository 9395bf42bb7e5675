"""Candidate retrieval: the ads nearest to a query vector."""
