"""`python -m cwdfm`: run the command line without the installed `cwdfm` script."""

from cwdfm.cli.main import main

main()
