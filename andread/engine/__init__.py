"""The engine: model, flat store, optimizer, precision, snapshots.

The trainer sees only `Engine`; `flat.FlatEngine` is its implementation for one device.
"""
