"""The nouns: tools, answers, schemas, permissions. Standard library, numpy and re2."""
