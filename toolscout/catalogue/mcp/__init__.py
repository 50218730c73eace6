"""A client of MCP servers: connections, limits on what a server may send, and configuration files."""
