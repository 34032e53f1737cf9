"""What is compiled once for many: packages of the same code, headers, the C++ runner."""
