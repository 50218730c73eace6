"""Constrained decoding over a trie of tool ids."""
