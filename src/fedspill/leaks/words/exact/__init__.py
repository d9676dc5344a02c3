"""Exact recovery of text from transformers by linear algebra: token sets, prefixes, encoders, certificates."""
