"""The relay: a process that lets the kernel encrypt the connections of mounts, and its client.

``process`` and what it imports (``serving``, ``mount_target``, ``splicing``) are that process. They use the
standard library alone, and little of it, because the process is on every node: ``dataclasses`` and
``pathlib`` would take 2 MiB of its memory. ``control`` is the agent's side of its socket, and
``self_connection`` tests whether the machine can run it. Which services exist, and why, does not belong here.
"""
