"""A cluster of two nodes on this machine: Debian's slurmctld, slurmd and munged.

Without Slurm's accounting database a job has the account that its owner names.
"""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from tests.support.waiting import wait_for

NEEDED: Final = ("munged", "slurmctld", "slurmd", "scontrol", "squeue", "sbatch", "scancel")
NODES: Final = ("node-1", "node-2")
MISSING: Final = "needs Slurm's daemons: apt-get install --no-install-recommends slurm-wlm munge"
# Directories of daemons on Debian, which are not on every user's PATH.
PATH: Final = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"


def scontrol() -> str:
    """Return the path of scontrol."""
    path = shutil.which("scontrol", path=PATH)
    assert path is not None
    return path


def is_there() -> bool:
    """Return whether all programs are installed."""
    return all(shutil.which(name, path=PATH) for name in NEEDED)


def _free_port() -> int:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port: int = unused.getsockname()[1]
    return port


@dataclass
class Slurm:
    """A running cluster."""

    home: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="paceline-slurm-")))
    children: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def conf(self) -> Path:
        return self.home / "slurm.conf"

    @property
    def environment(self) -> dict[str, str]:
        return {"SLURM_CONF": str(self.conf), "PATH": PATH}

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stop()

    def scontrol(self, *arguments: str) -> str:
        """Return the output of scontrol."""
        return self._ask("scontrol", *arguments)

    def _ask(self, *command: str) -> str:
        done = subprocess.run(  # noqa: S603 - a list of arguments
            command,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        return done.stdout + done.stderr

    def submit(self, *nodes: str, account: str, name: str = "training") -> str:
        """Start a job on the nodes; return its id once it runs."""
        job = self._ask(
            *("sbatch", "--parsable", f"--nodelist={','.join(nodes)}", f"--nodes={len(nodes)}"),
            *(f"--account={account}", f"--job-name={name}", "--output=/dev/null"),
            "--wrap=sleep 600",
        ).strip()
        wait_for(lambda: job in self._ask("squeue", "-h", "-t", "R", "-o", "%A").split(), "a job")
        return job

    def cancel(self, *jobs: str) -> None:
        """End jobs, by default all; return once they are over."""
        jobs = jobs or tuple(self._ask("squeue", "-h", "-o", "%A").split())
        if jobs:
            self._ask("scancel", *jobs)
        wait_for(
            lambda: not set(jobs) & set(self._ask("squeue", "-h", "-o", "%A").split()), "the end"
        )

    def is_drained(self, node: str) -> bool:
        """Return whether a node is drained, so that no job starts on it."""
        return "DRAIN" in self._shown(node).partition("State=")[2].split()[0].split("+")

    def reason(self, node: str) -> str:
        """Return the reason for which a node is drained; empty if it is not."""
        return self._shown(node).partition("Reason=")[2].strip()

    def _is_idle(self) -> bool:
        return all("State=IDLE " in self._shown(node) for node in NODES)

    def _shown(self, node: str) -> str:
        return self.scontrol("show", "node", node, "--oneliner")

    def _start(self) -> None:
        self.home.chmod(0o755)
        for name in ("munge", "state", *NODES):
            (self.home / name).mkdir(mode=0o755)
        munge = self.home / "munge"
        key = munge / "key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o400)
        self.conf.write_text(self._configuration())
        self._run(
            "munged",
            "--foreground",
            "--force",
            f"--key-file={key}",
            f"--socket={munge / 'socket'}",
            f"--pid-file={munge / 'pid'}",
            f"--log-file={munge / 'log'}",
            f"--seed-file={munge / 'seed'}",
        )
        wait_for((munge / "socket").exists, "munged")
        self._run("slurmctld", "-D", "-f", str(self.conf))
        for node in NODES:
            self._run("slurmd", "-D", "-f", str(self.conf), "-N", node)
        wait_for(self._is_idle, "two idle nodes")

    def _run(self, program: str, *arguments: str) -> None:
        with (self.home / f"{program}-{len(self.children)}.out").open("wb") as out:
            self.children.append(
                subprocess.Popen(  # noqa: S603 - a list of arguments
                    [program, *arguments],
                    env=self.environment,
                    stdout=out,
                    stderr=subprocess.STDOUT,
                    stdin=subprocess.DEVNULL,
                )
            )

    def _stop(self) -> None:
        for child in reversed(self.children):
            child.send_signal(signal.SIGTERM)
        for child in reversed(self.children):
            try:
                child.wait(10)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait(10)
        shutil.rmtree(self.home, ignore_errors=True)

    def _configuration(self) -> str:
        user, here = pwd.getpwuid(os.geteuid()).pw_name, socket.gethostname()
        controller, *ports = (_free_port() for _ in range(1 + len(NODES)))
        lines = [
            "ClusterName=paceline-test",
            f"SlurmctldHost={here}(127.0.0.1)",
            f"SlurmctldPort={controller}",
            f"SlurmUser={user}",
            f"SlurmdUser={user}",
            "AuthType=auth/munge",
            "CredType=cred/munge",
            f"AuthInfo=socket={self.home / 'munge' / 'socket'}",
            f"StateSaveLocation={self.home / 'state'}",
            f"SlurmdSpoolDir={self.home}/%n",
            f"SlurmctldPidFile={self.home / 'slurmctld.pid'}",
            f"SlurmdPidFile={self.home}/%n.pid",
            f"SlurmctldLogFile={self.home / 'slurmctld.log'}",
            f"SlurmdLogFile={self.home}/%n.log",
            "ProctrackType=proctrack/pgid",
            "TaskPlugin=task/none",
            "SwitchType=switch/none",
            "MpiDefault=none",
            "SelectType=select/linear",
            "JobAcctGatherType=jobacct_gather/none",
            "AccountingStorageType=accounting_storage/none",
            "ReturnToService=0",
        ]
        lines += [
            f"NodeName={node} NodeHostname={here} NodeAddr=127.0.0.1 Port={port} CPUs=1"
            for node, port in zip(NODES, ports, strict=True)
        ]
        lines.append("PartitionName=main Nodes=ALL Default=YES State=UP")
        return "\n".join(lines) + "\n"
