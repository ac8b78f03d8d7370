"""Vision models that start near-sighted and learn how far to look."""
