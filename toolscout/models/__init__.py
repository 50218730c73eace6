"""Models: encoders, language models, towers, tool ids and constrained decoding, without stores and retrievers."""
