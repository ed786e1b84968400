"""Two hosts on this machine: network namespaces, each with an address of its own, and a link that can be cut."""

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass

LINK = "veth0"


@dataclass(frozen=True)
class Host:
    """A network namespace, and its address on the link to the other one."""

    name: str
    address: str

    def set_up(self) -> None:
        """Make the host, without a link. Raises CalledProcessError if that is not allowed."""
        ip("netns", "add", self.name)
        ip("-n", self.name, "link", "set", "lo", "up")

    def tear_down(self) -> None:
        """End all that runs on the host, and take it away."""
        for pid in self.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        ip("netns", "delete", self.name)

    def command(self, *words: str) -> list[str]:
        """Return the command line that runs another one here; a process that it starts becomes that other one."""
        return ["ip", "netns", "exec", self.name, *words]

    def run(self, *words: str) -> None:
        """Run a command here, to its end. Raises CalledProcessError if it fails."""
        subprocess.run(self.command(*words), check=True, capture_output=True, text=True)

    def drop(self, hook: str, packets: str) -> None:
        """Let a firewall drop packets, without a word, that come (input) or leave (output), as nft describes them."""
        chain = f"add chain inet wall {hook}_chain {{ type filter hook {hook} priority 0; }}"
        self.run("nft", f"add table inet wall; {chain}; add rule inet wall {hook}_chain {packets} drop")

    def processes(self) -> list[int]:
        """The numbers of the processes that run here; the kernel does not count those that only wait to be reaped."""
        return [int(pid) for pid in ip("netns", "pids", self.name).split()]

    def set_link(self, state: str) -> None:
        """Take the link "down", whereupon no packet leaves or comes, or "up" again."""
        ip("-n", self.name, "link", "set", LINK, state)


def ip(*arguments: str) -> str:
    return subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True).stdout


def missing(*programs: str) -> str | None:
    """Say what is not here that two hosts need, or these programs beside them."""
    for program in ("ip", *programs):
        if shutil.which(program) is None:
            return f"there is no {program}: run tests/clusters/install.sh"
    try:
        with two_hosts():
            return None
    except subprocess.CalledProcessError as error:
        return f"network namespaces are not allowed here: {error.stderr.strip()}"


@contextmanager
def two_hosts() -> Iterator[tuple[Host, Host]]:
    """Make two hosts and the link between them; take them away with all that runs on them, whatever has happened."""
    one, other = (Host(f"ddp-{os.getpid()}-{number}", f"10.77.0.{number + 1}") for number in range(2))
    with ExitStack() as made:
        for host in (one, other):
            host.set_up()
            made.callback(host.tear_down)
        ip("link", "add", LINK, "netns", one.name, "type", "veth", "peer", "name", LINK, "netns", other.name)
        for host in (one, other):
            ip("-n", host.name, "address", "add", f"{host.address}/24", "dev", LINK)
            host.set_link("up")
        yield one, other


@contextmanager
def hosts_apart(mtu: int) -> Iterator[tuple[Host, Host]]:
    """Make two hosts and a router between them, whose link to the second takes smaller packets (bytes), which it hides.

    To a connection, such a way is a black hole: small packets pass, and large ones vanish.
    """
    router = Host(f"ddp-{os.getpid()}-router", "")
    one, other = (Host(f"ddp-{os.getpid()}-{number}", f"10.77.{number}.1") for number in (1, 2))
    with ExitStack() as made:
        for host in (one, other, router):
            host.set_up()
            made.callback(host.tear_down)
        for number, host in enumerate((one, other), start=1):
            link, near = f"link{number}", f"10.77.{number}.2"
            ip("link", "add", LINK, "netns", host.name, "type", "veth", "peer", "name", link, "netns", router.name)
            ip("-n", host.name, "address", "add", f"{host.address}/24", "dev", LINK)
            ip("-n", router.name, "address", "add", f"{near}/24", "dev", link)
            ip("-n", router.name, "link", "set", link, "up")
            host.set_link("up")
            ip("-n", host.name, "route", "add", "default", "via", near)
        ip("-n", router.name, "link", "set", "link2", "mtu", str(mtu))
        router.run("sh", "-c", "echo 1 >/proc/sys/net/ipv4/ip_forward")
        router.drop("output", "icmp type destination-unreachable")
        yield one, other
