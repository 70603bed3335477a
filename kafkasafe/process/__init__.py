"""Exit handlers, objects that must not leave their process, and a flag with which one thread wakes another."""
