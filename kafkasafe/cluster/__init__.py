"""The interface to the brokers: requests, and their answers as data (`api.py`)."""
