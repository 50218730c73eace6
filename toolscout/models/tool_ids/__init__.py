"""Tool ids as tokens and codes: clustering, residual quantisation, assignment."""
