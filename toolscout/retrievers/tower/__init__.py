"""The two-tower network that masstool and colt share."""
