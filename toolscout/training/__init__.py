"""Training: the loop of every method (loop), losses, options, and a task for each kind of model."""
