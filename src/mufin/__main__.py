"""`python -m mufin` is the same as `mufin`."""

import sys

from mufin.cli import main

if __name__ == "__main__":
    sys.exit(main())
