"""The night: what is served is rebuilt by today's toolchain, compared, and promoted or not."""
