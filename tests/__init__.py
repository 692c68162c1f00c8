"""The tests. A package, so that tests/causal is `tests.causal` and never mistaken for the product's `causal`."""
