"""Texts by gradient matching: embeddings are sought whose gradients are those observed, then read as tokens."""
