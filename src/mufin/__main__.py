"""Run the command line with `python -m mufin`."""

import sys

from mufin.cli import main

if __name__ == "__main__":
    sys.exit(main())
