"""The run-directory protocol: names, formats, locks and atomic writes, shared with andrectl.

Imports neither torch nor click nor systemd. Each module owns one noun:

    layout      every name in the directory
    errors      the exit codes and the tree of errors
    tables      strict reading of TOML and JSON tables into dataclasses
    settings    run.toml
    policy      policy.json
    feasibility whether a policy can be obeyed
    files       the only way to write here: atomic, durable
    disk        the calls that it makes, where tests can make each of them fail
    lock        who owns the run
    presence    what the owner tells about itself
    checkpoint  the .bin file
    companion   what a .bin needs beside it to be resumed from
    recovery    the newest valid checkpoint, and what was passed over
    commit      the order in which a checkpoint becomes durable, and retention
    history     .loss.json
    events      .events.json
    requests    what a signal asks for
    clock       the boot clock, and which process is which
"""
