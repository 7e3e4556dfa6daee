"""The entry point of ``kube-efs`` and of ``python -m kube_efs``."""

import sys

from kube_efs.telemetry.uncaught import catch_uncaught


def main() -> int:
    """Run the command in the arguments; returns the exit status."""
    catch_uncaught()
    # The work of a worker pod often takes less time than loading the command line.
    if sys.argv[1:2] == ["worker"]:
        from kube_efs.provisioning.workers.program import main as work

        return work(sys.argv[2:])
    if sys.argv[1:] in (["tunnel"], ["node"]):
        from kube_efs.node_processes import main as run_process

        return run_process(sys.argv[1])
    from kube_efs.cli import main as run_command

    run_command()
    return 0


if __name__ == "__main__":
    sys.exit(main())
