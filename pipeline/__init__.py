"""What happens after a run: its records are read, and judged by code that shares nothing with what it judges."""
