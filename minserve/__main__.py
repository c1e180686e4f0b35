"""`python -m minserve` is the command line."""

from minserve.cli.main import main

main()
