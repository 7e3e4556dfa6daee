"""The one stunnel of a node: its configuration, its process, its log, and the keeper of the three.

What stunnel is to serve is given here as values; who wants it and why is not known. Nothing else starts
stunnel, signals it or writes its file.
"""
