"""Machines: GPUs and their driver, the C library, and what an ELF file asks of them."""
