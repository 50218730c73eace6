"""MassTool as its authors published it, and ablations of this package's masstool."""
