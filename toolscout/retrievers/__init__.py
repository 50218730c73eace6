"""One file is one method."""
