"""Products of experts for GPUs of NVIDIA's, in Numba's CUDA.

No GPU was there when they were written: their results were compared in Numba's simulator, and they
compile to PTX. How fast they are nobody knows, and no back-end uses them yet.
"""
