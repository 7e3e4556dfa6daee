"""The stunnels of a node: which one serves which tunnel, and the configuration, process and log of each.

The services come from ``plan`` as values; this package does not know why they exist. No other code starts
stunnel, signals it or writes its file.
"""
