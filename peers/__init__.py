"""Measures toolscout beside other libraries that search tools, all on the same requests: python -m peers."""
