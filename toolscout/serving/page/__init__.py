"""The web page: its routes and, in static/, its files."""
