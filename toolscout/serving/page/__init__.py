"""The web page of the server: its routes, and its HTML, CSS and scripts in static/."""
