"""The process that compiles one network and leaves a blob: does a ``CompileJob``."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import msgspec

from edgerun.backends.base import CompileOptions
from edgerun.backends.openvino.compile_process import CompileJob
from edgerun.backends.openvino.devices import find_device
from edgerun.backends.openvino.maker import NetworkMaker
from edgerun.backends.openvino.session import FAILURES, Session, reason
from edgerun.errors import BackendError, EdgerunError
from edgerun.model.bundle import open_bundle


def main() -> None:
    """Reads the job from stdin; prints a line of JSON with what went wrong, or nothing did.

    What else is printed, as OpenVINO's logs are, goes to stderr.
    """
    stdout = os.dup(1)
    os.dup2(2, 1)
    job = msgspec.json.decode(sys.stdin.buffer.read(), type=CompileJob)
    try:
        compile_blob(job)
        fault = ""
    except (*FAILURES, EdgerunError) as error:
        fault = reason(error)
    os.write(stdout, json.dumps({"fault": fault}).encode())


def compile_blob(job: CompileJob) -> None:
    """Makes the blob, unless another process has.

    Raises:
        BackendError: the bundle is another, or the device's compiler exports nothing.
        BundleError: the bundle is not what its manifest says.
        RuntimeError: the device refuses the network.
    """
    bundle = open_bundle(job.folder, verify=True)
    if bundle.digest != job.digest:
        raise BackendError("the bundle was changed since it was opened: load the model again")
    session = Session(find_device(job.device), job.threads)
    options = CompileOptions(tuple(job.states), digest=job.digest)
    segment = job.segment_of(bundle.graph)
    maker = NetworkMaker(segment, session, options, lambda network: "", Path(job.cache))
    maker.leave_blob(job.extent, job.config, job.name)
