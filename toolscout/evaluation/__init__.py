"""Evaluation: the quality of search results (evaluate.py), and their cost (bench/)."""
