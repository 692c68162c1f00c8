"""A cluster on this machine: one real process a replica, on loopback, that can be killed, paused and cut off.

Everything is in one directory D, so that another process can take over where this one left:

    D/cluster.toml   the cluster file       D/data/SITE   the data of a replica
    D/SITE.log       what it printed        D/SITE.pid    which process it is (process.py)
    D/network.json   links that are cut     D/trace       what it traced, if it does
    D/session.key    what seals sessions

The same directory may be used from several terminals at once; a lock makes starting and stopping take turns, because
two that start the same replica would lose one of the processes. A pid file stays when its replica was killed: the
site is *dead* then, and comes back with `restart`. `down` takes the pid files away, and the data stay.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from fcntl import LOCK_EX, flock
from itertools import permutations
from pathlib import Path
from typing import Any, NamedTuple, Self

import kvstore
from kvstore.config import Cluster, SiteConfig, load_cluster, parse_cluster
from kvstore.errors import AddressTaken, BadRequest, ConfigError, Unavailable
from kvstore.keyfile import write_key
from kvstore.plan import accepts, is_free, plan
from kvstore.process import Process, State, read_pid_file, spawn, write_pid_file
from kvstore.shape import read_cuts, write_cuts

FILE, KEY, NETWORK, TRACE, LOCK = "cluster.toml", "session.key", "network.json", "trace", ".lock"
START_S = 30.0  # for all replicas to serve; beyond it: DidNotStart
STOP_S = 10.0  # for all replicas to end by themselves; beyond it: they are killed
POLL_S = 0.02

DEAD, DOWN = "dead", "down"  # states of a site beside those of its process: it was killed; it is not meant to run


class DidNotStart(Unavailable):
    """A replica ended, or said nothing, before it served."""

    exit_code: int | None = None  # of the process, if it ended


class SiteState(NamedTuple):
    name: str
    state: str  # running, paused, dead, down
    pid: int | None
    client: str
    peer: str


class LocalCluster:
    """The cluster in one directory. As a context manager it is up inside, and nothing of it runs afterwards."""

    def __init__(self, directory: Path, cluster: Cluster, *, arguments: Sequence[str] | None = None) -> None:
        self.directory = directory
        self.cluster = cluster
        self.is_tied = False  # whether replicas that are started here end with this process, however it ends
        self._arguments = arguments  # for `kvstore serve`; None: those that each replica had before

    @classmethod
    def create(cls, directory: Path | str, *, trace: bool = False, **wishes: Any) -> Self:
        """A new cluster in a directory that has none; `plan` says what can be wished for. Nothing is started."""
        directory = Path(directory).absolute()
        file = directory / FILE
        text = plan(session_key_file=KEY, **wishes).to_toml()
        try:
            (directory / "data").mkdir(parents=True, exist_ok=True)
            with file.open("x", encoding="utf-8") as target:
                write_key(directory / KEY)
                target.write(text)
        except FileExistsError:
            raise BadRequest(why=f"there is a cluster in {directory} already") from None
        except OSError as error:
            raise _unwritable(directory, error) from None
        cluster = parse_cluster(text, file=str(file), folder=directory)
        return cls(directory, cluster, arguments=serve_arguments(directory, trace=trace))

    @classmethod
    def open(cls, directory: Path | str, *, arguments: Sequence[str] | None = None) -> Self:
        """The cluster that a directory has, whoever started it."""
        directory = Path(directory).absolute()
        if not (directory / FILE).exists():
            why = f"there is no cluster in {directory}; `kvstore cluster up` makes one"
            raise ConfigError(why, file=str(directory / FILE), key="", why=why)
        return cls(directory, load_cluster(directory / FILE), arguments=arguments)

    def __enter__(self) -> Self:
        self.is_tied = True
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.down()

    # Where things are

    @property
    def names(self) -> list[str]:
        return [site.name for site in self.cluster.sites]

    @property
    def endpoints(self) -> list[str]:
        """The addresses for clients, in the order of the sites."""
        return [site.client for site in self.cluster.sites]

    def endpoint(self, name: str) -> str:
        return self.cluster.site(name).client

    @property
    def file(self) -> Path:
        return self.directory / FILE

    @property
    def trace_folder(self) -> Path:
        return self.directory / TRACE

    def log_file(self, name: str) -> Path:
        return self.directory / f"{name}.log"

    def process(self, name: str) -> Process | None:
        """The process of a site, dead or alive; None when it is down."""
        found = read_pid_file(self._pid_file(name))
        return None if found is None else found[0]

    def state(self, name: str) -> str:
        process = self.process(name)
        if process is None:
            return DOWN
        state = process.state()
        return DEAD if state is State.GONE else str(state)

    def status(self) -> list[SiteState]:
        rows = []
        for site in self.cluster.sites:
            state, process = self.state(site.name), self.process(site.name)
            pid = process.pid if process is not None and state in (State.RUNNING, State.PAUSED) else None
            rows.append(SiteState(site.name, state, pid, site.client, site.peer))
        return rows

    # Starting and stopping

    def start(self, *names: str, timeout_s: float = START_S) -> list[str]:
        """Start these replicas, or all, and wait until they serve. Which of them had to be started."""
        sites = self._sites(names)
        with self._locked():
            return self._start([site for site in sites if self.state(site.name) in (DEAD, DOWN)], timeout_s)

    def kill(self, *names: str) -> None:
        """As a power cut would: SIGKILL, and wait until they are gone."""
        sites = self._sites(names)
        with self._locked():
            self._kill(sites)

    def stop(self, *names: str, timeout_s: float = STOP_S) -> list[str]:
        """Ask these replicas, or all, to end, and kill those that do not. Which of them had to be killed."""
        sites = self._sites(names)
        with self._locked():
            return self._stop(sites, timeout_s)

    def restart(self, *names: str, timeout_s: float = START_S) -> None:
        """Kill these replicas, or all, if they run, and start them again."""
        sites = self._sites(names)
        with self._locked():
            self._kill(sites)
            self._start(sites, timeout_s)

    def pause(self, *names: str) -> None:
        self._signal(names, signal.SIGSTOP)

    def resume(self, *names: str) -> None:
        self._signal(names, signal.SIGCONT)

    def down(self, *, timeout_s: float = STOP_S, purge: bool = False) -> list[str]:
        """Stop everything and heal the network. The data stay, unless they are to be purged."""
        if not self.directory.exists():
            return []
        killed = self.stop(timeout_s=timeout_s)
        (self.directory / NETWORK).unlink(missing_ok=True)
        if purge:
            self._purge()
        return killed

    # The network

    def partition(self, *groups: Iterable[str]) -> list[list[str]]:
        """Cut all links between these groups, and only those. Sites that nobody named are one more group together."""
        named = [self._sites(tuple(group)) for group in groups if group]
        whole = [[site.name for site in group] for group in named]
        known = [name for group in whole for name in group]
        for name in known:
            if known.count(name) > 1:
                raise BadRequest(why=f"{name} is named twice")
        if rest := [name for name in self.names if name not in known]:
            whole.append(rest)
        self.cut((one, other) for here, there in permutations(whole, 2) for one in here for other in there)
        return whole

    def cut(self, pairs: Iterable[tuple[str, str]]) -> None:
        """Cut these links, each in one direction, and only these."""
        found = list(pairs)
        for one, other in found:
            if self.cluster.site(one) == self.cluster.site(other):
                raise BadRequest(why=f"{one} has no link to itself")
        write_cuts(self.directory / NETWORK, found)

    def heal(self) -> None:
        self.cut(())

    def cuts(self) -> list[tuple[str, str]]:
        """The links that are cut now, each from one site to another."""
        return sorted(read_cuts(self.directory / NETWORK))

    # How

    def _sites(self, names: Sequence[str]) -> list[SiteConfig]:
        return [self.cluster.site(name) for name in names] if names else list(self.cluster.sites)

    def _pid_file(self, name: str) -> Path:
        return self.directory / f"{name}.pid"

    @contextmanager
    def _locked(self) -> Iterator[None]:
        try:
            lock = (self.directory / LOCK).open("a")
        except OSError as error:
            raise _unwritable(self.directory, error) from None
        with lock:
            flock(lock, LOCK_EX)
            yield

    def _start(self, sites: Sequence[SiteConfig], timeout_s: float) -> list[str]:
        for site in sites:
            for whose, address in (("clients", site.client), ("peers", site.peer)):
                if not is_free(address):
                    what = f"the {whose} of {site.name}"
                    raise AddressTaken(address=address, what=what, why="another process listens there")
        deadline = time.monotonic() + timeout_s
        started: list[SiteConfig] = []
        try:
            logs = {}
            for site in sites:
                logs[site.name] = _size(self.log_file(site.name))
                started.append(site)
                self._spawn(site)
            for site in sites:
                self._wait_until_it_serves(site, deadline, logs[site.name])
        except BaseException:  # also Ctrl-C: what is half started would be found by nobody
            self._stop(started, STOP_S)
            raise
        return [site.name for site in sites]

    def _spawn(self, site: SiteConfig) -> None:
        arguments = self._arguments
        if arguments is None:
            found = read_pid_file(self._pid_file(site.name))
            arguments = found[1] if found else []
        command = self._command(site, arguments)
        with self.log_file(site.name).open("ab") as log:
            process = spawn(command, log, folder=self.directory, environment=_environment(), is_tied=self.is_tied)
        write_pid_file(self._pid_file(site.name), process, arguments)

    def _command(self, site: SiteConfig, arguments: Sequence[str]) -> list[str]:
        network = str(self.directory / NETWORK)
        own = ["--cluster", str(self.file), "--site", site.name, "--network", network]
        tie = ["--with-parent"] if self.is_tied else []
        return [sys.executable, "-P", "-m", "kvstore", "serve", *own, *tie, *arguments]

    def _wait_until_it_serves(self, site: SiteConfig, deadline: float, log_start: int) -> None:
        process = self.process(site.name)
        assert process is not None
        while process.state() is not State.GONE:
            if accepts(site.client):
                return
            if time.monotonic() > deadline:
                raise DidNotStart(f"{site.name} does not serve yet; {self._last_words(site, log_start)}")
            time.sleep(POLL_S)
        error = DidNotStart(f"{site.name} did not start; {self._last_words(site, log_start)}")
        error.exit_code = process.exit_code()
        raise error

    def _last_words(self, site: SiteConfig, log_start: int) -> str:
        path = self.log_file(site.name)
        with path.open("rb") as log:
            log.seek(log_start)
            lines = [line for line in log.read().decode(errors="replace").splitlines() if line.strip()]
        return f"{path} ends with: {lines[-1].strip()}" if lines else f"{path} says nothing"

    def _kill(self, sites: Sequence[SiteConfig]) -> None:
        for process in filter(None, [self.process(site.name) for site in sites]):
            process.send(signal.SIGKILL)
            process.wait(STOP_S)

    def _stop(self, sites: Sequence[SiteConfig], timeout_s: float) -> list[str]:
        running = {site.name: process for site in sites if (process := self.process(site.name)) is not None}
        for process in running.values():
            process.send(signal.SIGTERM, signal.SIGCONT)  # one that is paused hears nothing before it goes on
        deadline = time.monotonic() + timeout_s
        killed = []
        for name, process in running.items():
            if not process.wait(max(0.0, deadline - time.monotonic())):
                process.send(signal.SIGKILL)
                process.wait(STOP_S)
                killed.append(name)
        for site in sites:
            self._pid_file(site.name).unlink(missing_ok=True)
        return killed

    def _signal(self, names: Sequence[str], number: signal.Signals) -> None:
        for site in self._sites(names):
            process = self.process(site.name)
            if process is None or not process.send(number):
                raise Unavailable(f"{site.name} is not running")

    def _purge(self) -> None:
        """Only what is ours goes, and the directory with it if nothing else is in it."""
        for site in self.cluster.sites:
            data = self.cluster.data_of(site)
            if data.resolve().is_relative_to(self.directory.resolve() / "data"):
                shutil.rmtree(data, ignore_errors=True)
            self.log_file(site.name).unlink(missing_ok=True)
        shutil.rmtree(self.trace_folder, ignore_errors=True)
        for name in (FILE, KEY, LOCK):
            (self.directory / name).unlink(missing_ok=True)
        for folder in (self.directory / "data", self.directory):
            with suppress(OSError):
                folder.rmdir()


def serve_arguments(directory: Path, *, trace: bool) -> list[str]:
    return ["--trace", str(directory / TRACE)] if trace else []


def _environment() -> Mapping[str, str]:
    """The same packages as here, wherever the process runs."""
    home = str(Path(kvstore.__file__).parents[1])
    paths = [home, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1"}


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _unwritable(directory: Path, error: OSError) -> Unavailable:
    return Unavailable(f"{directory} cannot be written: {error.strerror}")
