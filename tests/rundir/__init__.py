"""Tests of the run-directory protocol: real files, real processes, real full disks."""
