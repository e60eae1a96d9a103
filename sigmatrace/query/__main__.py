"""``python -m sigmatrace.query``."""

import sys

from sigmatrace.query.command import main

if __name__ == "__main__":
    sys.exit(main())
