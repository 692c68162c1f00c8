"""Causal multicast: nine ordering protocols, an oracle that judges them, and a simulator that runs them."""
