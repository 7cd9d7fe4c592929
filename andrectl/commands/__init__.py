"""One file a verb, each with a Click command named `command`; loaded only when called."""
