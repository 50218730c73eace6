"""The web page: its routes, and its files in static/."""
