"""Calls a tool by where it came from."""
