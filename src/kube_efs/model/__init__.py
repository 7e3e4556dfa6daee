"""Values and rules, and nothing that touches the outside.

Everything here is a frozen value or a pure function over values: identifiers, file systems, tunnel
targets, claims, classes, volumes, directories, and the tree of errors. No module of this package
imports asyncio, a client library or anything that reads files, clocks or sockets; whatever needs those
belongs to the package that owns the resource.
"""
