"""What kube-efs asks AWS, and the picture of it that the rest reads.

Calls to EFS, EC2 and STS, instance metadata, and the list of file systems that polls them. Foreign errors are
translated here, in ``errors``; nothing above this package imports botocore. What to do about an answer
is decided elsewhere.
"""
