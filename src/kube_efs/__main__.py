"""Where ``kube-efs`` begins, and ``python -m kube_efs``."""

import sys

from kube_efs.telemetry.uncaught import catch_uncaught


def main() -> int:
    """Run the command that the arguments name; gives the exit status."""
    catch_uncaught()
    # What a worker's pod has to do often takes less time than the command line takes to load.
    if sys.argv[1:2] == ["worker"]:
        from kube_efs.provisioning.workers.program import main as work

        return work(sys.argv[2:])
    from kube_efs.cli import main as run_command

    run_command()
    return 0


if __name__ == "__main__":
    sys.exit(main())
