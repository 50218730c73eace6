"""Calls tools: Python functions, MCP servers and HTTP services."""
