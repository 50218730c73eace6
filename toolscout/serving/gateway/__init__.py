"""The MCP gateway: one MCP server in front of many."""
