"""The program of a pod that is a node's aws-efs-csi-driver for the kubelet, the kernel and EFS.

Like that driver with efs-utils, it starts a stunnel of its own for each mount, at a loopback port from 20049
on, with a certificate that names the access point. These tunnels end with its pod. It refuses what it does
not know in the context of a volume, such as tokens of pods. Like csi-node-driver-registrar, it registers with
the kubelet, and takes back the registration at the end.

``MOUNT_TARGETS`` has the address of a mount target for each file system, as JSON, because the nodes of
the tests have no DNS. ``aws_driver.py NODE_ID`` runs until SIGTERM.
"""

# ruff: noqa: N802 - methods are named by the protocol

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import grpc
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID

from kube_efs.csi.protocol import csi_pb2, csi_pb2_grpc, registration_pb2, registration_pb2_grpc

DRIVER = "efs.csi.aws.com"
FIRST_PORT, LAST_PORT = 20049, 21049
_SOCKET = Path("/csi/csi.sock")
_SOCKET_OF_THE_KUBELET = f"/var/lib/kubelet/plugins/{DRIVER}/csi.sock"
_REGISTRATION = Path(f"/registration/{DRIVER}-reg.sock")
_STATE = Path("/var/run/efs")
_CA_FILE = "/etc/amazon/efs/efs-utils.crt"
# Of efs-utils, which says with it what the connection is for.
_ACCESS_POINT = x509.ObjectIdentifier("1.3.6.1.4.1.4843.7.1")
_FILE_SYSTEM = x509.ObjectIdentifier("1.3.6.1.4.1.4843.7.3")
_UTF8_STRING = 0x0C
_OPTIONS = "nfsvers=4.1,rsize=1048576,wsize=1048576,hard,timeo=600,retrans=2,noresvport"
_KNOWN_CONTEXT = {"storage.kubernetes.io/csiprovisioneridentity", "encryptintransit", "path"}
_CONNECT_SECONDS = 20.0
_STUNNEL = """\
fips = no
foreground = yes
pid =
socket = l:SO_REUSEADDR=yes
[efs]
client = yes
accept = 127.0.0.1:{port}
connect = {address}:2049
sslVersion = TLSv1.2
renegotiation = no
TIMEOUTbusy = 20
TIMEOUTclose = 0
TIMEOUTidle = 70
delay = yes
verifyChain = yes
checkHost = {file_system}.efs.us-east-1.amazonaws.com
CAfile = {ca_file}
cert = {certificate}
"""


class Identity(csi_pb2_grpc.IdentityServicer):
    """The driver's name."""

    def GetPluginInfo(self, request: object, context: object) -> csi_pb2.GetPluginInfoResponse:
        return csi_pb2.GetPluginInfoResponse(name=DRIVER, vendor_version="v3.4.1")

    def GetPluginCapabilities(
        self, request: object, context: object
    ) -> csi_pb2.GetPluginCapabilitiesResponse:
        return csi_pb2.GetPluginCapabilitiesResponse()

    def Probe(self, request: object, context: object) -> csi_pb2.ProbeResponse:
        return csi_pb2.ProbeResponse()


class Node(csi_pb2_grpc.NodeServicer):
    """Mounts and unmounts."""

    def __init__(self, node_id: str, mount_targets: dict[str, str]) -> None:
        self._node_id = node_id
        self._mount_targets = mount_targets
        self._lock = threading.Lock()
        self._tunnels: dict[str, subprocess.Popen[bytes]] = {}

    def NodeGetInfo(self, request: object, context: object) -> csi_pb2.NodeGetInfoResponse:
        return csi_pb2.NodeGetInfoResponse(node_id=self._node_id)

    def NodeGetCapabilities(self, request: object, context: object) -> csi_pb2.NodeGetCapabilitiesResponse:
        return csi_pb2.NodeGetCapabilitiesResponse()

    def NodePublishVolume(
        self, request: csi_pb2.NodePublishVolumeRequest, context: grpc.ServicerContext
    ) -> csi_pb2.NodePublishVolumeResponse:
        for name in request.volume_context:
            if name.lower() not in _KNOWN_CONTEXT:
                context.abort(
                    grpc.StatusCode.INVALID_ARGUMENT, f"Volume context property {name} not supported."
                )
        # Since version 3, volumes that it has created itself begin so.
        handle = request.volume_id.removeprefix("efs:")
        file_system, path, access_point = [*handle.split(":"), "", ""][:3]
        target = Path(request.target_path)
        with self._lock:
            if not target.is_mount():
                target.mkdir(parents=True, exist_ok=True)
                port = self._start_tunnel(str(target), file_system, access_point)
                options = f"{_OPTIONS},port={port}" + (",ro" if request.readonly else "")
                mount = ("mount", "-t", "nfs4", "-o", options, f"127.0.0.1:{path or '/'}", str(target))
                done = subprocess.run(mount, capture_output=True, text=True, check=False)
                if done.returncode:
                    self._end_tunnel(str(target))
                    context.abort(grpc.StatusCode.INTERNAL, f"Could not mount: {done.stdout} {done.stderr}")
        return csi_pb2.NodePublishVolumeResponse()

    def NodeUnpublishVolume(
        self, request: csi_pb2.NodeUnpublishVolumeRequest, context: grpc.ServicerContext
    ) -> csi_pb2.NodeUnpublishVolumeResponse:
        target = Path(request.target_path)
        with self._lock:
            if target.is_mount():
                done = subprocess.run(("umount", str(target)), capture_output=True, text=True, check=False)
                if done.returncode:
                    context.abort(grpc.StatusCode.INTERNAL, f"Could not unmount: {done.stderr}")
            with suppress(FileNotFoundError):
                target.rmdir()
            self._end_tunnel(str(target))
        return csi_pb2.NodeUnpublishVolumeResponse()

    def NodeGetVolumeStats(
        self, request: object, context: grpc.ServicerContext
    ) -> csi_pb2.NodeGetVolumeStatsResponse:
        context.abort(grpc.StatusCode.UNIMPLEMENTED, "")

    def _start_tunnel(self, target: str, file_system: str, access_point: str) -> int:
        port = next(one for one in range(FIRST_PORT, LAST_PORT) if _is_free(one))
        name = f"{file_system}.{target.strip('/').replace('/', '.')}.{port}"
        certificate, configuration = _STATE / f"{name}.pem", _STATE / f"stunnel-config.{name}"
        certificate.write_bytes(_certificate(file_system, access_point))
        configuration.write_text(
            _STUNNEL.format(
                port=port,
                address=self._mount_targets[file_system],
                file_system=file_system,
                ca_file=_CA_FILE,
                certificate=certificate,
            )
        )
        self._tunnels[target] = subprocess.Popen(("stunnel", str(configuration)))
        deadline = time.monotonic() + _CONNECT_SECONDS
        while _is_free(port) and time.monotonic() < deadline:
            time.sleep(0.1)
        return port

    def _end_tunnel(self, target: str) -> None:
        tunnel = self._tunnels.pop(target, None)
        if tunnel is not None:
            tunnel.terminate()
            tunnel.wait()


class Registration(registration_pb2_grpc.RegistrationServicer):
    """Registers the driver with the kubelet."""

    def GetInfo(self, request: object, context: object) -> registration_pb2.PluginInfo:
        return registration_pb2.PluginInfo(
            type="CSIPlugin", name=DRIVER, endpoint=_SOCKET_OF_THE_KUBELET, supported_versions=["1.0.0"]
        )

    def NotifyRegistrationStatus(
        self, request: registration_pb2.RegistrationStatus, context: object
    ) -> registration_pb2.RegistrationStatusResponse:
        print("registered:", request.plugin_registered, request.error, flush=True)  # noqa: T201 - the pod's log
        return registration_pb2.RegistrationStatusResponse()


def _is_free(port: int) -> bool:
    with socket.socket() as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _certificate(file_system: str, access_point: str) -> bytes:
    """A private key, and a certificate that it has signed itself."""
    key = rsa.generate_private_key(65537, 3072)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, socket.gethostname())])
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=15))
        .not_valid_after(now + timedelta(hours=3))
    )
    for oid, text in ((_ACCESS_POINT, access_point), (_FILE_SYSTEM, file_system)):
        if text:
            value = bytes((_UTF8_STRING, len(text))) + text.encode()
            builder = builder.add_extension(x509.UnrecognizedExtension(oid, value), critical=False)
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return private + builder.sign(key, hashes.SHA256()).public_bytes(pem)


def main(node_id: str) -> None:
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    driver = grpc.server(ThreadPoolExecutor())
    csi_pb2_grpc.add_IdentityServicer_to_server(Identity(), driver)
    csi_pb2_grpc.add_NodeServicer_to_server(Node(node_id, json.loads(os.environ["MOUNT_TARGETS"])), driver)
    registrar = grpc.server(ThreadPoolExecutor())
    registration_pb2_grpc.add_RegistrationServicer_to_server(Registration(), registrar)
    for server, path in ((driver, _SOCKET), (registrar, _REGISTRATION)):
        path.unlink(missing_ok=True)
        server.add_insecure_port(f"unix:{path}")
        server.start()
    ended.wait()
    registrar.stop(0).wait()
    driver.stop(0).wait()


if __name__ == "__main__":
    main(sys.argv[1])
