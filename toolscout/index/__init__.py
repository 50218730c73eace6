"""Search structures that change live: words, vectors, exact names, spelling, past requests."""
