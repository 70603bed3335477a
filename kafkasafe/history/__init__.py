"""What a log held, and what it holds now: epochs, offsets, batches, and what a consumer remembers. Pure."""
