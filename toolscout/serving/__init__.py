"""Faces of one Scout on a network: HTTP, an MCP gateway, a page; and who may see what through them."""
