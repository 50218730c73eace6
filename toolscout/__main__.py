"""python -m toolscout: the same as the toolscout command."""

from toolscout.cli.main import main

main()
