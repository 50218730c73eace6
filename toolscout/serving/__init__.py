"""Serves one Scout on a network: HTTP API, MCP gateway and web page, with access control for all of them."""
