"""`python -m andread`: the daemon."""

from andread.daemon.main import main

if __name__ == "__main__":
    main()
