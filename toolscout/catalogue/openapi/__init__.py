"""Reads OpenAPI documents and converts their schemas to JSON Schema."""
