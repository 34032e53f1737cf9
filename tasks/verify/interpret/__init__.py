"""Interpret: a GPU's kernels, run by Triton's interpreter where no GPU is, beside eager.

`program` takes apart what Inductor wrote for the GPU in Python, `language` is what Triton's
interpreter lacks, `memory` finds accesses that leave their buffers, `kernel` runs one kernel, `run`
the whole program, and `step` says which kernel is wrong.
"""
