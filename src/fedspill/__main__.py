"""`python -m fedspill` is the command line."""

from fedspill.cli.main import main

if __name__ == "__main__":
    main()
