"""Constrained decoding of JSON: a language model can only write what a JSON Schema allows."""
