"""Where bytes lie under keys: in a folder, or in S3."""
