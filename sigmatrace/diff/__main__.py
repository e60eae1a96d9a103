"""``python -m sigmatrace.diff``."""

import sys

from sigmatrace.diff.command import main

if __name__ == "__main__":
    sys.exit(main())
