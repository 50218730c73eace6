"""Measures what is served: the quality of answers (evaluate.py), and their cost (bench/)."""
