"""The objects of all kinds, and the rules between a request and the store: create, change and delete.

HTTP does not belong here, nor do the rules of single kinds.
"""
