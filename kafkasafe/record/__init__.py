"""Record batches, and the records in them: encoded, decoded, as Python objects or as Arrow columns. Pure."""
