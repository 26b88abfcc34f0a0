"""Run the command line with `python -m mufin`."""

import os
import sys

from mufin.cli import main

if __name__ == "__main__":
    code = main()
    if "TORCHELASTIC_RUN_ID" in os.environ:  # the threads of a process group can abort an ordinary exit
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)
