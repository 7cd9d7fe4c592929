"""`python -m andrectl`."""

from andrectl.cli import main

if __name__ == "__main__":
    main(prog_name="andrectl")
