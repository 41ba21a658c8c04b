"""`python -m cadence.vllm script.py [args]`, `... -m package.module [args]`, `... -c code [args]`."""

import sys

from cadence.vllm.launch import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
