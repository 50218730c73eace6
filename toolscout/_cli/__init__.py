"""The commands behind toolscout.cli. Heavy parts are imported inside the commands, so that the rest starts quickly."""
