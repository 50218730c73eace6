"""Reports: Markdown pages with tables and plots, made of rows of results."""
