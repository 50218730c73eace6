"""Rerankers: how well each of a few documents serves a request."""
