"""``python -m kube_efs`` is the command ``kube-efs``."""

from kube_efs.cli import main

main()
