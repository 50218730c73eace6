"""A client of MCP servers."""
