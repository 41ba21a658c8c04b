"""`python -m cadence` is the command `cadence`."""

import sys

from cadence.entrypoints.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
