"""Cross: AOTInductor packages for NVIDIA GPUs, compiled on a machine that has none.

`retarget` turns a program exported on the CPU into one whose tensors are fake CUDA tensors,
`pretend_gpu` makes this torch answer as if a named GPU were there, and `compile_for` brings both
together and reads out of the written bytes which GPU their kernels are for.
"""
