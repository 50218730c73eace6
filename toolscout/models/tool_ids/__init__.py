"""Ids of tools as tokens and codes, and how they are made."""
