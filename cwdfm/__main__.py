"""`python -m cwdfm`: the command line, where the package is not installed."""

from cwdfm.cli.main import main

main()
