"""An EFS on this machine: the AWS API, instance metadata, and file systems that can be mounted.

``service`` is the face of it. The AWS API is moto's server; the data plane is real: an NFS server for each
file system, and for each mount target a TLS listener on an address of the loopback network. What a client
does with it (tunnels, claims, pods) is not of this package.
"""
