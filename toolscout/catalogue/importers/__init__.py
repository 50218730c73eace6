"""One file is one importer; catalogue/registry.py names them all."""
