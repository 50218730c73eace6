"""OpenAPI documents and their schemas."""
