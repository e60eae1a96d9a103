"""``python -m sigmatrace.view``."""

import sys

from sigmatrace.view.command import main

if __name__ == "__main__":
    sys.exit(main())
