"""`python -m handoff`: the command line."""

from handoff.infra.cli.main import main

if __name__ == "__main__":
    main()
