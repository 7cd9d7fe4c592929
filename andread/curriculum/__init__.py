"""The feeding side: sources to tokens to batches, and the mix of the sources."""
