"""andrectl: the control tool of andread. Of andread it imports the run-directory protocol only."""
