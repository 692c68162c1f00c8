"""What replicas say to each other. No API: it may change with the wire version."""
