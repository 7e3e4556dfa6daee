"""The mounts of this machine, as the kernel reports them, and the programs that mount and unmount.

Claims, volumes and tunnels do not belong here: callers decide what to mount and where.
"""
