"""Reproductions of papers: published settings and numbers, ablations, and tools for experiments."""
