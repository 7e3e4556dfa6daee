"""The rules of the built-in kinds: defaults, what the server sets, what is refused, what deletion means.

Only what differs between kinds belongs here, as data where it can be; what all objects have in common is
the service's. ``builtin_types`` has a row for each kind.
"""
