"""Work on many machines with Ray, which is imported inside functions alone."""
