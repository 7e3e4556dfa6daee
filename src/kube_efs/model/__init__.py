"""Values and rules, without any I/O.

Everything here is a frozen value or a pure function over values. No module of this package imports asyncio,
a client library, or anything that reads files, clocks or sockets; code that needs those belongs to the
package that owns the resource.

``efs``, ``csi`` and ``shared_volumes`` are the rooms of Amazon EFS, of the CSI driver, and of the custom
resource SharedVolume. Here lie the values of Kubernetes (claims, classes, volumes), the rules of the two
provisioners of tunnel and directory volumes, and the tree of errors.
"""
