"""Compile: an exported program and a target go in, a package comes out (AOTInductor).

`step` compiles; `weights`, `packing`, `packages` and `shared_weights` shape what is emitted,
`machine` says what is compiled for, `reading` reads what the compiler wrote before it is compiled,
`caching` keeps what would be compiled again, `cross` compiles for GPUs that aren't here, and `arm`
for ARM64.
"""
