"""The MCP gateway: one server in front of many."""
