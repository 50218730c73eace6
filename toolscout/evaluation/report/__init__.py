"""The page of results: tables and figures made of rows."""
