"""Calls to AWS, and the known state of its file systems.

The package calls EFS, S3 Files, EC2, STS and instance metadata, and polls the list of file systems.
``errors`` translates foreign errors; no package above imports botocore. Other packages decide about answers.
"""
