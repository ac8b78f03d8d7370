"""The run folder: its files, its lock, its log, its checkpoints, and how they are written so that nothing is lost."""
