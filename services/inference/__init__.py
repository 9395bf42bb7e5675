"""The inference service: query vectors and click probabilities."""
