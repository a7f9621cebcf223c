"""``python -m edgerun`` is ``edgerun``."""

import sys

from edgerun.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
