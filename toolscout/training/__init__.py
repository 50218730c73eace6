"""Learning: one loop for every method (loop), what is minimised (losses), and the encoder's own task (bi_encoder)."""
