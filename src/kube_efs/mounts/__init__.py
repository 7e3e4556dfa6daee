"""What is mounted on this machine, as the kernel reports it, and the programs that mount and unmount.

What to mount where is for others to say: claims, volumes and tunnels are not known here.
"""
