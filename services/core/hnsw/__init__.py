"""A proximity graph (HNSW) searched by a compiled walk that a stop rule can end at every node."""
