"""Whether there is a GPU, and how much of its memory is free."""

from __future__ import annotations

import ctypes
import sys
from importlib.util import find_spec

from edgerun.backends.base import Support
from edgerun.errors import BackendError

OLDEST = (7, 5)  # compute capability that CUDA 13 compiles for


def gpu_support(number: int) -> Support:
    """Whether a GPU of some number can be used, and if not, why; loads the driver."""
    from numba import config, cuda

    if config.ENABLE_CUDASIM:
        is_there = number == 0
        return Support(is_there, "Numba's simulator of a GPU, which has number 0 only")
    if find_spec("numba_cuda") is None:
        extra = "the extra `cuda` is not installed: pip install 'edgerun[cuda]', 0.7 GB"
        missing = "" if _has_driver() else "no driver of NVIDIA's here, and "
        return Support(False, missing + extra)
    try:
        count = len(cuda.gpus)
    except ImportError as error:  # Numba's CudaSupportError is one
        reason = " ".join(str(error).replace("Error at driver init:", "").split()).strip(" :.")
        return Support(False, f"no driver of NVIDIA's for a GPU: {reason}")
    if number >= count:
        there = "none" if not count else "only number 0" if count == 1 else f"0 to {count - 1}"
        return Support(False, f"there is no GPU number {number}; the driver finds {there}")
    capability = cuda.gpus[number].compute_capability
    if tuple(capability) < OLDEST:
        return Support(
            False,
            f"GPU {number} has compute capability {capability[0]}.{capability[1]}; expected "
            f"{OLDEST[0]}.{OLDEST[1]} or more",
        )
    return Support(True, "of all kinds, an H100 has run its kernels")


def _has_driver() -> bool:
    """Whether the system finds the driver's library."""
    try:
        ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError:
        return False
    return True


def free_bytes(number: int) -> float:
    """Memory of a GPU that nobody uses.

    Raises:
        BackendError: the GPU does not answer.
    """
    from numba import cuda

    try:
        with cuda.gpus[number]:
            return float(cuda.current_context().get_memory_info()[0])
    except Exception as error:  # Numba's many, none of which has a common base
        raise BackendError(f"GPU {number} does not answer: {error}") from error


def gpu_name(number: int) -> str:
    """What a GPU is called; "" for one that is simulated, or does not say."""
    from numba import config, cuda

    if config.ENABLE_CUDASIM:
        return ""
    try:
        name = cuda.gpus[number].name
    except Exception:  # Numba's many, none of which has a common base
        return ""
    return name.decode() if isinstance(name, bytes) else str(name)
