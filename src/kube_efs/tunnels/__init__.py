"""The tunnels of one node: the desired tunnels, their mount targets, and their state.

``agent`` and ``plan`` decide what the node serves, ``data_planes`` which data plane serves it. The processes
of the two data planes are in ``stunnel`` and ``relay``, the tunnels that mounts request in ``on_demand``, the
socket for these requests in ``api``, the kernel's sockets in ``sockets``. Claims and volumes do not belong
here.
"""
