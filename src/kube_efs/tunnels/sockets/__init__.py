"""The TCP sockets of this node as the kernel tells them, and what several looks at them prove.

Only looks: nothing here opens, closes or connects anything that lasts.
"""
