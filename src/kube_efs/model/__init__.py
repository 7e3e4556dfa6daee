"""Values and rules, without any I/O.

Everything here is a frozen value or a pure function over values. No module of this package imports asyncio, a
client library, or anything that reads files, clocks or sockets; code that needs those belongs to the package
that owns the resource. One exception: ``secrets`` remembers the texts that no message may contain.

``efs`` contains Amazon EFS, ``csi`` the CSI driver, and ``shared_volumes`` the custom resource SharedVolume.
The modules next to them contain the values of Kubernetes (claims, classes, volumes), the rules of the
provisioners of tunnel and directory volumes, and the tree of errors.
"""
