"""The seam to the brokers: what is asked of them and what they answer (`api.py`)."""
