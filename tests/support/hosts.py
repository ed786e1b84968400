"""Two hosts on this machine: network namespaces, each with an address, and a link that tests can cut."""

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

LINK = "veth0"


class Host(NamedTuple):
    """A network namespace, and its address on the link to the other one."""

    name: str
    address: str

    def command(self, *words: str) -> list[str]:
        """Return the command line that runs a command here, by replacing its own process."""
        return ["ip", "netns", "exec", self.name, *words]

    def run(self, *words: str) -> None:
        """Run a command here, to its end. Raises CalledProcessError if it fails."""
        subprocess.run(self.command(*words), check=True, capture_output=True, text=True)

    def drop(self, hook: str, packets: str) -> None:
        """Drop packets silently that come (input) or leave (output), as nft describes them."""
        chain = f"add chain inet wall {hook}_chain {{ type filter hook {hook} priority 0; }}"
        self.run("nft", f"add table inet wall; {chain}; add rule inet wall {hook}_chain {packets} drop")

    def processes(self) -> list[int]:
        """Return the IDs of the processes that run here, without zombies."""
        return [int(pid) for pid in ip("netns", "pids", self.name).split()]

    def set_link(self, state: str) -> None:
        """Take the link "down", so that no packet passes, or "up" again."""
        ip("-n", self.name, "link", "set", LINK, state)


def ip(*arguments: str) -> str:
    return subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True).stdout


def missing(*programs: str) -> str | None:
    for program in ("ip", *programs):
        if shutil.which(program) is None:
            return f"there is no {program}: run tests/clusters/install.sh"
    try:
        with two_hosts():
            return None
    except subprocess.CalledProcessError as error:
        return f"network namespaces are not allowed here: {error.stderr.strip()}"


@contextmanager
def made_host(name: str, address: str = "") -> Iterator[Host]:
    """Make a host without a link; end all that runs on it in the end, and take it away."""
    host = Host(f"ddp-{os.getpid()}-{name}", address)
    ip("netns", "add", host.name)
    try:
        ip("-n", host.name, "link", "set", "lo", "up")
        yield host
    finally:
        for pid in host.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        ip("netns", "delete", host.name)


def connect(host: Host, other: Host, link: str, address: str) -> None:
    ip("link", "add", LINK, "netns", host.name, "type", "veth", "peer", "name", link, "netns", other.name)
    for end, name, own in ((host, LINK, host.address), (other, link, address)):
        ip("-n", end.name, "address", "add", f"{own}/24", "dev", name)
        ip("-n", end.name, "link", "set", name, "up")


@contextmanager
def two_hosts() -> Iterator[tuple[Host, Host]]:
    """Make two hosts and the link between them. Raises CalledProcessError if that is not allowed."""
    with made_host("0", "10.77.0.1") as one, made_host("1", "10.77.0.2") as other:
        connect(one, other, LINK, other.address)
        yield one, other


@contextmanager
def hosts_apart(mtu: int) -> Iterator[tuple[Host, Host]]:
    """Make two hosts and a router between them, whose link to the second takes no packets larger than this (bytes).

    It does not say so: to a connection, small packets pass, and large ones vanish.
    """
    with made_host("1", "10.77.1.1") as one, made_host("2", "10.77.2.1") as other, made_host("router") as router:
        for number, host in enumerate((one, other), start=1):
            connect(host, router, f"link{number}", near := f"10.77.{number}.2")
            ip("-n", host.name, "route", "add", "default", "via", near)
        ip("-n", router.name, "link", "set", "link2", "mtu", str(mtu))
        router.run("sh", "-c", "echo 1 >/proc/sys/net/ipv4/ip_forward")
        router.drop("output", "icmp type destination-unreachable")
        yield one, other
