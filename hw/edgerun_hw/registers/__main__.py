"""``python -m edgerun_hw.registers``; see ``generated.py``."""

import sys

from edgerun_hw.registers.generated import main

sys.exit(main(sys.argv[1:]))
