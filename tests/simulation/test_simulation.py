"""A few runs of the simulation; ``make simulate`` runs any number."""

import subprocess
import sys
import time
from contextlib import closing
from inspect import signature
from multiprocessing import get_context

import pytest
from tests.simulation.apiserver import Body
from tests.simulation.planted_faults import PLANTED_FAULTS
from tests.simulation.replica import FIRST
from tests.simulation.simulation import Seeded, Simulation
from tests.simulation.virtual import VirtualLoop

from kube_efs.aws.s3_files import AwsS3Files
from kube_efs.model.volumes import DRIVER
from kube_efs.provisioning.guards import RemovalOrder

_SEEDS = 10


def test_simulation_breaks_no_invariant() -> None:
    # A separate process, so that a run depends only on its seed.
    command = [sys.executable, "-m", "tests.simulation", "--seeds", str(_SEEDS), "--jobs", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"
    assert f"{_SEEDS} runs" in done.stdout


# The constructor of the first one has its clock by position, and the other one by keyword.
@pytest.mark.parametrize("kind", [AwsS3Files, RemovalOrder])
def test_product_gets_the_clock_of_the_simulation(kind: type) -> None:
    with closing(VirtualLoop()) as loop, Seeded(loop, seed=0):
        assert signature(kind).parameters["clock"].default == loop.time
    assert signature(kind).parameters["clock"].default is time.monotonic


def test_claim_may_wait_for_people_who_have_deleted_the_bound_volume_of_its_access_point() -> None:
    simulation = Simulation(seed=0)
    server, spec = simulation.server, {"storageClassName": "reused"}
    server.create("persistentvolumeclaims", {"metadata": {"name": "two", "namespace": "blue"}, "spec": spec})
    volume: Body = {
        "metadata": {"name": "pvc-two", "finalizers": ["kubernetes.io/pv-protection"]},
        "spec": {
            "csi": {"driver": DRIVER, "volumeHandle": f"{FIRST}::fsap-00000000000000001"},
            "claimRef": {"name": "two", "namespace": "red", "uid": "of-red"},
            "persistentVolumeReclaimPolicy": "Delete",
        },
    }
    server.create("persistentvolumes", volume)
    server.update("persistentvolumes", "pvc-two", lambda body: body["status"].update(phase="Bound"))
    assert simulation._unserved() == ["claim blue/two is Pending"]
    server.delete("persistentvolumes", "pvc-two")
    assert simulation._unserved() == []
    simulation.loop.close()


def test_planted_faults_fit_the_code_that_they_change() -> None:
    # Each in a process of its own, since a fault stays.
    with get_context("fork").Pool(1, maxtasksperchild=1) as pool:
        assert [one for one in pool.map(_set_up, PLANTED_FAULTS, chunksize=1) if one] == []


def _set_up(name: str) -> str:
    """The error of a planted fault."""
    try:
        PLANTED_FAULTS[name].set_up()
    except Exception as error:  # noqa: BLE001 the test shows it
        return f"{name}: {error!r}"
    return ""
