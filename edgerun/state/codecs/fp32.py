"""Elements as they are."""

import numpy as np

from edgerun.state.codecs.base import Cast

CODEC = Cast(np.float32)
