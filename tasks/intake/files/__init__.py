"""The files of a delivery: staged, unzipped and decoded, and none of them unpickled."""
