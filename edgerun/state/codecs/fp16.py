"""Half the bytes: IEEE 754 binary16."""

import numpy as np

from edgerun.state.codecs.base import Cast

CODEC = Cast(np.float16)
