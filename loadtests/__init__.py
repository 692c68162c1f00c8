"""Measuring the store from outside: what a client feels, what it costs, how old an answer may be."""
