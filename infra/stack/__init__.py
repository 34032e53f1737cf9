"""The served stack on one machine: Prefect, MLflow, PostgreSQL and workers, under supervisor."""
