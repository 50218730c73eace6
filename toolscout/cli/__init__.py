"""The commands behind toolscout.cli.main. Heavy parts are imported inside the commands, so that the rest starts
quickly."""
