"""The seeds' two models and the corpus' transformers by the seeds' own protocol, CPU or GPU."""
