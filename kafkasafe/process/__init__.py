"""What belongs to one process: its exit handlers, and objects that must not leave it."""
