"""Papers as published: their settings, numbers, tables and ablations."""
