"""The built-in importers, one a file; catalogue/registry.py lists them."""
