"""A release as MLflow shows it; `artifacts.registry` is the door to this room."""
