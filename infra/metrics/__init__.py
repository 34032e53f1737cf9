"""What a monitoring system sees of a stack: figures in Prometheus' text format."""
