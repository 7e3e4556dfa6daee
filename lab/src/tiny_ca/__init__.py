"""Certificate authorities for the API server of ``tinykube`` and the mount targets of ``fake_efs``.

Each server makes its own authority when it starts. What a certificate is used for does not belong here.
"""
