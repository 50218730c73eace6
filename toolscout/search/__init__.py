"""What Scout joins: whether a tool is needed, whether one fits, feedback, snapshots of an index."""
