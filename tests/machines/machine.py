"""Virtual machines with another kernel and several domains of memory. They read this host's files and change none."""

import gzip
import lzma
import platform
import re
import shlex
import shutil
import subprocess
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.blackbox.launch import ROOT

SUITES = {"5.10": "bullseye", "6.1": "bookworm", "6.12": "trixie"}
"""The versions of Linux, and the release of Debian of whose packages each is one."""
TOOLS = {"qemu-system-x86_64": "qemu-system-x86", "busybox": "busybox-static", "cpio": "cpio"}
"""The programs that this needs, and the packages of Debian that have them."""
FOLDER = ROOT / "build" / "machines"
DOMAIN_MIB = 3072
MODULES = [
    *("virtio", "virtio_ring", "virtio_pci_modern_dev", "virtio_pci_legacy_dev", "virtio_pci"),
    *("netfs", "fscache", "9pnet", "9pnet_virtio", "9p", "overlay", "failover", "net_failover", "virtio_net"),
]
"""Those of the devices and of the files, in the order in which they need each other."""
AGENT, PORT = "/run/agent", 2222

INIT = """#!/bin/busybox sh
B=/bin/busybox
$B mount -t proc proc /proc; $B mount -t sysfs sys /sys; $B mount -t devtmpfs dev /dev
for module in {modules}; do [ -f /modules/$module ] && $B insmod /modules/$module; done
$B mount -t 9p -o trans=virtio,version=9p2000.L,ro,msize=32768,cache=loose host /host
$B mount -t tmpfs own /own && $B mkdir /own/upper /own/work
$B mount -t overlay -o lowerdir=/host,upperdir=/own/upper,workdir=/own/work root /new
$B mount -t proc proc /new/proc; $B mount -t sysfs sys /new/sys; $B mount -t devtmpfs dev /new/dev
$B mkdir -p /new/dev/shm /new/dev/pts
$B mount -t tmpfs -o size=2g shm /new/dev/shm; $B mount -t devpts pts /new/dev/pts
$B mount -t tmpfs tmp /new/var/tmp; $B mount -t tmpfs run /new/run
$B mount -t cgroup2 groups /new/sys/fs/cgroup && echo +memory > /new/sys/fs/cgroup/cgroup.subtree_control
$B ip link set lo up
$B hostname vm{number}
[ -e /sys/class/net/eth0 ] && $B ip address add 10.0.0.{number}/24 dev eth0 && $B ip link set eth0 up
printf '%s\\n' '10.0.0.1 vm1' '10.0.0.2 vm2' >> /new/etc/hosts
exec $B chroot /new /bin/bash {script}
"""
"""The first process. The host's files are the root; what the machine writes is its own and stays in its memory.

A request to 9p with buffers of 256 KiB took 20 ms, as the kernel clears them; with 32 KiB it takes less than one. The
overlay asks for no file twice that is not there.
"""

SCRIPT = """export HOME=/var/tmp TMPDIR=/var/tmp
{environ}
cat > {agent} << 'END'
#!/bin/sh
# agent [-options] HOST WORDS...: has a shell on HOST run the words, as ssh would.
while [ "${{1#-}}" != "$1" ]; do shift; done
host=$1; shift
echo "cd '$PWD'; $*" | busybox nc "$host" {port}
END
chmod +x {agent}
cd {root}
{command}
echo "status $?"
echo o > /proc/sysrq-trigger
sleep 9
"""


def missing():
    """The packages of Debian that this machine lacks."""
    return [package for tool, package in TOOLS.items() if shutil.which(tool) is None]


def run(version, command, environ, *, domains=4, is_joined=False, limit_s=900):
    """Boots a machine, which runs a line of shell, and prints its output.

    Args:
        version: Of Linux; see `SUITES`.
        command: The line of shell, run in the project's folder.
        environ: What is added to an empty environment.
        domains: How many domains of memory it has, with a core each.
        is_joined: Whether a second machine, vm2, is on a network with it and runs what `AGENT` asks.
        limit_s: When it is killed.

    Returns:
        The exit status of the line; None if the machine was killed before.
    """
    kernel, status = kernel_of(version), None
    with TemporaryDirectory(dir=FOLDER) as name, ExitStack() as machines:  # which the machines read
        first, *_ = [
            machines.enter_context(started(Path(name, str(number)), number, kernel, line, environ, domains, limit_s))
            for number, line in enumerate([command, f"busybox nc -ll -p {PORT} -e /bin/sh"][: 1 + is_joined], start=1)
        ]
        for text in first.stdout or ():
            print(text, end="", flush=True)
            if found := re.match(r"status (\d+)\r?$", text):
                status = int(found[1])
    return status


@contextmanager
def started(folder, number, kernel, command, environ, domains, limit_s):
    """A machine for the time of a block, by its number on the network."""
    folder.mkdir()
    settings = "\n".join(f"export {name}={shlex.quote(value)}" for name, value in environ.items())
    root = shlex.quote(str(ROOT))
    script = folder / "script"
    script.write_text(SCRIPT.format(environ=settings, root=root, command=command, agent=AGENT, port=PORT))
    with subprocess.Popen(
        ["timeout", str(limit_s), *qemu(kernel, initrd(folder, kernel, script, number), number, domains)],
        cwd=folder.parent,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE if number == 1 else subprocess.DEVNULL,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        try:
            yield process
        finally:
            process.terminate()  # which `timeout` passes on


def qemu(kernel, first_root, number, domains):
    """The command line of a machine.

    Emulation is slow where an instruction repeats for each byte (erms), and where the kernel clears memory twice or
    guards itself against programs.
    """
    memory = [
        word
        for domain in range(domains)
        for word in (
            *("-object", f"memory-backend-ram,id=m{domain},size={DOMAIN_MIB}M"),
            *("-numa", f"node,nodeid={domain},cpus={domain},memdev=m{domain}"),
        )
    ]
    ends = [f"{end}.type=unix,{end}.path=socket{n}" for end, n in (("local", number), ("remote", 3 - number))]
    network = ["-netdev", f"dgram,id=net,{','.join(ends)}"]
    network += ["-device", f"virtio-net-pci,netdev=net,mac=52:54:00:00:00:0{number},romfile="]
    return [
        *("qemu-system-x86_64", "-accel", "tcg,thread=multi", "-cpu", "max,la57=off,erms=off"),
        *("-m", f"{DOMAIN_MIB * domains}M", "-smp", f"{domains},sockets={domains}", *memory, *network),
        *("-nographic", "-no-reboot", "-kernel", str(next(kernel.glob("boot/vmlinuz-*"))), "-initrd", str(first_root)),
        *("-append", "console=ttyS0 panic=1 loglevel=3 mitigations=off init_on_alloc=0", "-virtfs"),
        "local,path=/,mount_tag=host,security_model=none,readonly=on,multidevs=remap",
    ]


def initrd(folder, kernel, script, number):
    """The file of the first root: a shell, the modules that the kernel has, and the first process."""
    root = folder / "root"
    for name in ("bin", "modules", "proc", "sys", "dev", "host", "own", "new"):
        (root / name).mkdir(parents=True)
    shutil.copy(str(shutil.which("busybox")), root / "bin")
    for name in MODULES:
        for file in kernel.rglob(f"{name}.ko*"):
            content = file.read_bytes()
            (root / "modules" / name).write_bytes(lzma.decompress(content) if file.suffix == ".xz" else content)
    init = root / "init"
    init.write_text(INIT.format(modules=" ".join(MODULES), script=shlex.quote(str(script)), number=number))
    init.chmod(0o755)
    names = "\n".join(str(path.relative_to(root)) for path in sorted(root.rglob("*")))
    archive = subprocess.run(
        ["cpio", "--create", "--format=newc", "--quiet"],
        cwd=root,
        input=names.encode(),
        capture_output=True,
        check=True,
    )
    file = folder / "initrd.gz"
    file.write_bytes(gzip.compress(archive.stdout, 1))
    return file


def kernel_of(version):
    """The folder of the newest Debian kernel of this version, which apt-get brings from this host's package index."""
    folder = FOLDER / f"linux-{version}"
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / "ready").touch()  # so that `make clean` removes it
    if not folder.exists():
        lists = FOLDER / f"lists-{version}"
        for name in ("index/partial", "cache/archives/partial"):
            (lists / name).mkdir(parents=True, exist_ok=True)
        of_host = f"Codename: {platform.freedesktop_os_release()['VERSION_CODENAME']}"
        index = output_of("apt-get", "indextargets", "--format=$(REPO_URI)", "Origin: Debian", of_host).split()[0]
        (lists / "sources.list").write_text(f"deb {index} {SUITES[version]} main\n")
        folders = {"Etc::SourceList": "sources.list", "State::Lists": "index", "Cache": "cache"}
        apt = [f"-oDir::{name}={lists / place}" for name, place in folders.items()] + ["-oDir::Etc::SourceParts=-"]
        subprocess.run(["apt-get", *apt, "--quiet=2", "update"], check=True)
        pattern = rf"^linux-image-{re.escape(version)}\.[0-9.+deb-]*-amd64$"
        found = output_of("apt-cache", *apt, "search", "--names-only", pattern)
        name = max(
            (line.split()[0] for line in found.splitlines()), key=lambda name: list(map(int, re.findall(r"\d+", name)))
        )
        subprocess.run(["apt-get", *apt, "--quiet=2", "download", name], cwd=lists, check=True)
        [package] = lists.glob(f"{name}_*.deb")
        subprocess.run(["dpkg", "--extract", package, lists / "new"], check=True)
        (lists / "new").rename(folder)
        shutil.rmtree(lists)
    return folder


def output_of(*line):
    """What a command prints."""
    return subprocess.run(line, capture_output=True, text=True, check=True).stdout
