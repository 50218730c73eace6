"""Fuses the rankings of several retrievers."""
