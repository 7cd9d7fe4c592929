"""The daemon: signals, systemd, logging, wiring and exit codes around the trainer."""
