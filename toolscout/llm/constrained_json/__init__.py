"""JSON that a schema allows, written by a language model token by token."""
