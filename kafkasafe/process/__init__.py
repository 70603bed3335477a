"""Code about a single process: its exit handlers, and objects that must not leave it."""
