"""Labelled requests: datasets, splits, metrics, conversations, trajectories."""
