"""The one stunnel of a node: its configuration, its process, its log, and the keeper of the three.

The services come from ``plan`` as values; this package does not know why they exist. No other code starts
stunnel, signals it or writes its file.
"""
