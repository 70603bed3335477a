"""How much and how long: bounds for memory, disk, requests in flight and waiting. Pure."""
