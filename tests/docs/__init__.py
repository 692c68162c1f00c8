"""Tests of the pages: what they tell a reader to type works."""
