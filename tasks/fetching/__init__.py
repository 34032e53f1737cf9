"""The ways that a delivery comes here by: copied, unpacked, downloaded, read out of a commit."""
