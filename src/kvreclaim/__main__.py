"""``python -m kvreclaim``: the command line without the script on the PATH."""

from kvreclaim.cli import main

if __name__ == "__main__":
    main()
