"""A release as MLflow shows it; `artifacts.mlflow.registry` is the door to this room."""
