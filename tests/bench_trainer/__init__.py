"""`make bench-trainer`: what the trainer claims, each figure against a named rival in the same run."""
