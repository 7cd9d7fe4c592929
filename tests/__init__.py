"""The tests, mirroring the rooms of the code."""
