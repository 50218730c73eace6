"""Measures what is served: how good the answers are (run), and what they cost (speed)."""
