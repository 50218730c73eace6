"""MassTool as published, and the ablations of ours."""
