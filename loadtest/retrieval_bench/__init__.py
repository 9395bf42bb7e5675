"""`frugalads bench retrieval`: stop rules beside stock FAISS at the least budget of equal recall."""
