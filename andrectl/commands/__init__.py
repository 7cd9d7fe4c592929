"""One verb a module, each with its Click command as the attribute `command`.

A module is imported only when its verb is used, so that none pays for another's imports.
"""
