"""A replicated key-value store: every replica takes writes, and no reader sees an effect before its cause."""
