"""What the toolchain itself gets wrong: PyTorch's own operator samples, compiled and compared.

`sampling` picks the samples, `values` asks them the questions that random draws don't, `bundling`
compiles many of them into one package, `judging` compares with eager, and `lookup` says what
a table of such results says of a graph.
"""
