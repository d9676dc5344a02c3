"""The command line, one file per command; `main` is where it begins."""
