#!/usr/bin/env python3
"""Tests of install.sh: the programs and the server are ours, and what Debian has is never asked for."""

import contextlib
import hashlib
import io
import os
import pty
import random
import re
import select
import shutil
import signal
import subprocess
import tarfile
import tempfile
import threading
import time
import unittest
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

HERE = Path(__file__).resolve().parent
RELEASE = "9.8.7"
BUILT = "1.20.2-2-x86_64"
DOWNLOADED = f"{RELEASE}-downloaded-x86_64"
ENVTEST = "/github.com/kubernetes-sigs/controller-tools/releases/download"
ARCHIVE = f"{ENVTEST}/envtest-v{RELEASE}/envtest-v{RELEASE}-linux-amd64.tar.gz"
PROGRAM = f"/dl.k8s.io/release/v{RELEASE}/bin/linux/amd64/kube-controller-manager"
PROGRAMS = ["etcd", "kube-apiserver", "kube-controller-manager"]


def program(version: str) -> bytes:
    """A program that says its version. What follows the script makes a file of it that is not sent in one piece."""
    return f"#!/bin/sh\necho Kubernetes v{version}\nexit\n".encode() + random.Random(version).randbytes(300_000)


def archive(*names: str) -> bytes:
    """An archive as envtest has them."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz", compresslevel=1) as tar:
        for name in names:
            entry = tarfile.TarInfo(f"controller-tools/envtest/{name}")
            # As there: the owner is somebody else, and etcd is not of the same mode.
            entry.size, entry.mode, entry.uid = len(PROGRAM_BYTES), 0o700, 4711
            tar.addfile(entry, io.BytesIO(PROGRAM_BYTES))
    return made.getvalue()


PROGRAM_BYTES = program(RELEASE)
ARCHIVE_BYTES = archive("etcd", "kube-apiserver", "kubectl")


class Server(ThreadingHTTPServer):
    """Answers a path as the test says, and remembers what it was asked for."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers, self.asked, self.ended = {}, [], threading.Event()
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()

    def close(self):
        self.ended.set()
        self.shutdown()
        self.server_close()


class Handler(BaseHTTPRequestHandler):
    """One request."""

    def handle_one(self):
        self.server.asked.append(self.path)
        answer = self.server.answers.get(self.path, missing)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            answer(self)

    do_GET = do_CONNECT = handle_one

    def head(self, status: int = 200, **headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), str(value))
        self.end_headers()

    def log_message(self, *_):
        pass


def whole(content: bytes):
    """The whole file."""

    def answer(request):
        request.head(Content_Length=len(content))
        request.wfile.write(content)

    return answer


def beginning(content: bytes, then):
    """Half of the file, and what follows."""

    def answer(request):
        request.head(Content_Length=len(content))
        request.wfile.write(content[: len(content) // 2])
        request.wfile.flush()
        then(request)

    return answer


def slowly(content: bytes, seconds: float):
    """The whole file, in ten pieces."""

    def answer(request):
        request.head(Content_Length=len(content))
        for piece in range(10):
            # The pace of the server is what the test is about.
            request.server.ended.wait(seconds / 10)
            request.wfile.write(content[len(content) * piece // 10 : len(content) * (piece + 1) // 10])
            request.wfile.flush()

    return answer


def later(then):
    """What follows, after 1.2 seconds."""

    def answer(request):
        request.server.ended.wait(1.2)
        then(request)

    return answer


def redirect(location: str):
    """Another address."""
    return lambda request: request.head(302, Location=location, Content_Length=0)


def silence(request):
    """Nothing, until the test is over."""
    request.server.ended.wait(60)


def headers_alone(request):
    """An answer whose content never comes."""
    request.head(Content_Length=100)
    silence(request)


def cut(_):
    """The end of the connection."""


def missing(request):
    """404"""
    request.head(404, Content_Length=0)


class Install(unittest.TestCase):
    """Runs a copy of the scripts, with checksums of our own programs, in a cache of its own."""

    def setUp(self):
        self.server = Server()
        self.addCleanup(self.server.close)
        self.server.answers = {ARCHIVE: whole(ARCHIVE_BYTES), PROGRAM: whole(PROGRAM_BYTES)}
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.scripts, self.stubs = Path(folder.name, "scripts"), Path(folder.name, "stubs")
        self.cache = Path(folder.name, "cache/operator-host/control-plane")
        self.scripts.mkdir()
        for name in ("install.sh", "lib.sh", "download.sh", "sources.sh"):
            shutil.copy(HERE / name, self.scripts)
        self.pin(ARCHIVE_BYTES, PROGRAM_BYTES)
        self.stubs.mkdir()
        self.stub("uname", "echo x86_64")
        # The build ends where it begins: there is no space for it. Nothing of a download is in its way.
        self.stub("df", f"echo Avail; echo 0; ! ls -d {self.cache}/.download-* 2>/dev/null || echo in the way >&2")
        self.environment = {
            "PATH": f"{self.stubs}:{os.environ['PATH']}",
            "HOME": folder.name,
            "XDG_CACHE_HOME": f"{folder.name}/cache",
            "CONTROL_PLANE_MIRROR": self.server.url,
            "no_proxy": "*",
        }

    def pin(self, archive_bytes: bytes, program_bytes: bytes):
        """Writes release.sh. The files for the other architecture are the other way round."""
        (self.scripts / "release.sh").write_text(
            f"""
            release={RELEASE}
            declare -A archive_sha512=(
                [amd64]={hashlib.sha512(archive_bytes).hexdigest()} [arm64]={hashlib.sha512(program_bytes).hexdigest()}
            )
            declare -A controller_manager_sha256=(
                [amd64]={hashlib.sha256(program_bytes).hexdigest()} [arm64]={hashlib.sha256(archive_bytes).hexdigest()}
            )
            """
        )

    def shorten(self, patience: str, milliseconds: int):
        """Makes one second of a longer patience."""
        script = self.scripts / "download.sh"
        text = script.read_text()
        self.assertIn(f"{patience}={milliseconds}\n", text)
        script.write_text(text.replace(f"{patience}={milliseconds}", f"{patience}=1000"))

    def stub(self, name: str, text: str):
        path = self.stubs / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)

    def entry(self, name: str, version: str) -> Path:
        """Puts a whole entry into the cache."""
        folder = self.cache / name
        folder.mkdir(parents=True)
        for each in PROGRAMS:
            (folder / each).write_bytes(program(version))
            (folder / each).chmod(0o755)
        digest = hashlib.sha256(program(version)).hexdigest()
        (folder / "SHA256SUMS").write_text("".join(f"{digest}  {each}\n" for each in PROGRAMS))
        return folder

    def start(self, **streams) -> subprocess.Popen:
        return subprocess.Popen(
            [self.scripts / "install.sh"], env=self.environment, stdin=subprocess.DEVNULL, text=True, **streams
        )

    def run_script(self) -> tuple[int, str, str]:
        """The exit code, what it printed, and what it said."""
        process = self.start(stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        printed, said = process.communicate(timeout=60)
        self.assertNotIn("\r", said, "no line is written over in a pipe")
        return process.returncode, printed, said

    def succeeds(self, folder: Path) -> str:
        """The script prints the folder and nothing else; what it said."""
        code, printed, said = self.run_script()
        self.assertEqual((code, printed), (0, f"{folder}\n"), said)
        self.nothing_stays()
        return said

    def builds(self, *words: str) -> str:
        """The download fails with these words, and the build from Debian's sources follows; what was said."""
        code, printed, said = self.run_script()
        self.assertEqual((code, printed), (1, ""), said)
        given_up = re.search("The download is given up: (.*)", said)
        self.assertIsNotNone(given_up, said)
        for each in words:
            self.assertIn(each, given_up[1])
        self.assertIn("Building a Kubernetes control plane (1.20.2)", said)
        self.assertIn("needs 4 GiB", said)
        self.assertNotIn("in the way", said)
        self.nothing_stays()
        self.assertFalse((self.cache / DOWNLOADED).exists())
        return said

    def nothing_stays(self):
        """No partial download, and none of its parts."""
        self.assertEqual([each.name for each in self.cache.glob(".*") if each.name != ".lock"], [])

    def until(self, what: str, condition):
        end = time.monotonic() + 20
        while not condition():
            self.assertLess(time.monotonic(), end, f"not within 20 s: {what}")
            time.sleep(0.02)


class Downloads(Install):
    """Where a server answers."""

    def test_all_three_programs_are_there_and_the_next_run_asks_nobody(self):
        folder = self.cache / DOWNLOADED
        said = self.succeeds(folder)
        self.assertIn(f"Downloading Kubernetes {RELEASE} from {self.server.url}", said)
        self.assertIn(f"Kubernetes v{RELEASE}, which was downloaded ({folder})", said)
        for each in PROGRAMS:
            self.assertEqual((folder / each).read_bytes(), PROGRAM_BYTES)
            self.assertEqual((folder / each).stat().st_mode & 0o777, 0o755)
            self.assertEqual((folder / each).stat().st_uid, os.getuid())
        self.assertEqual(sorted(each.name for each in folder.iterdir()), sorted([*PROGRAMS, "SHA256SUMS"]))
        self.assertEqual(self.server.asked, [ARCHIVE, PROGRAM])

        said = self.succeeds(folder)
        self.assertEqual(said, f"==> Kubernetes v{RELEASE}, which was downloaded ({folder})\n")
        self.assertEqual(self.server.asked, [ARCHIVE, PROGRAM])

    def test_another_architecture_has_its_own_files_and_checksums(self):
        self.stub("uname", "echo aarch64")
        self.pin(PROGRAM_BYTES, ARCHIVE_BYTES)
        self.server.answers = {
            path.replace("amd64", "arm64"): answer for path, answer in self.server.answers.items()
        }
        self.succeeds(self.cache / f"{RELEASE}-downloaded-aarch64")

    def test_the_path_of_a_mirror_and_its_redirects_are_followed(self):
        self.environment["CONTROL_PLANE_MIRROR"] += "/mirror/"
        self.server.answers[f"/mirror{ARCHIVE}"] = redirect(ARCHIVE)
        self.server.answers[f"/mirror{PROGRAM}"] = redirect(PROGRAM)
        self.succeeds(self.cache / DOWNLOADED)

    def test_the_password_of_a_mirror_is_used_and_not_shown(self):
        self.environment["CONTROL_PLANE_MIRROR"] = self.server.url.replace("://", "://user:secret@")
        self.server.answers[PROGRAM] = whole(b"")
        self.assertNotIn("secret", self.builds(f"{self.server.url}{PROGRAM} is not the file"))
        self.server.answers[PROGRAM] = lambda request: (
            whole(PROGRAM_BYTES) if request.headers["Authorization"] == "Basic dXNlcjpzZWNyZXQ=" else missing
        )(request)
        self.assertNotIn("secret", self.succeeds(self.cache / DOWNLOADED))

    def test_a_slow_server_is_not_a_silent_one(self):
        self.shorten("patience_in_the_middle", 20000)
        self.server.answers[ARCHIVE] = slowly(ARCHIVE_BYTES, seconds=2)
        self.succeeds(self.cache / DOWNLOADED)

    def test_each_server_on_the_way_has_its_own_time_to_answer(self):
        self.server.answers[ARCHIVE] = later(redirect("/elsewhere"))
        self.server.answers["/elsewhere"] = later(whole(ARCHIVE_BYTES))
        self.succeeds(self.cache / DOWNLOADED)

    def test_two_at_a_time_download_once(self):
        self.server.answers[ARCHIVE] = slowly(ARCHIVE_BYTES, seconds=1)
        both = [self.start(stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(2)]
        ends = [(*process.communicate(timeout=60), process.returncode) for process in both]
        for printed, said, code in ends:
            self.assertEqual((code, printed), (0, f"{self.cache / DOWNLOADED}\n"), said)
        waited = [said for _, said, _ in ends if "Another process is downloading" in said]
        self.assertEqual(len(waited), 1, ends)
        self.assertEqual(self.server.asked, [ARCHIVE, PROGRAM])

    def test_a_terminal_sees_how_far_it_is(self):
        self.server.answers[ARCHIVE] = slowly(ARCHIVE_BYTES * 10, seconds=1)
        self.pin(ARCHIVE_BYTES * 10, PROGRAM_BYTES)
        ours, its = pty.openpty()
        process = self.start(stdout=subprocess.DEVNULL, stderr=its)
        os.close(its)
        said = b""
        # A terminal whose program has ended is an error for who reads from it.
        with contextlib.suppress(OSError):
            while piece := os.read(ours, 65536):
                said += piece
        os.close(ours)
        self.assertEqual(process.wait(60), 0, said)
        self.assertRegex(said.decode(), rf"\r.*envtest-v{RELEASE}-linux-amd64.tar.gz … [1-8] of 9 MB")

    def test_a_damaged_download_is_replaced(self):
        folder = self.entry(DOWNLOADED, RELEASE)
        (folder / "etcd").write_text("#!/bin/sh\n")
        said = self.succeeds(folder)
        self.assertIn("cannot be used (a checksum is wrong): replacing it", said)
        self.assertEqual((folder / "etcd").read_bytes(), PROGRAM_BYTES)

    def test_what_a_killed_download_left_is_removed(self):
        (self.cache / ".download-abcdef").mkdir(parents=True)
        self.succeeds(self.cache / DOWNLOADED)


class FailedDownloads(Install):
    """Where none answers as it should: the words, the time, and that the next way is tried."""

    def test_a_wrong_checksum_of_the_archive_is_refused_and_the_program_is_not_asked_for(self):
        self.server.answers[ARCHIVE] = whole(ARCHIVE_BYTES + b"\0")
        right = hashlib.sha512(ARCHIVE_BYTES).hexdigest()[:12]
        wrong = hashlib.sha512(ARCHIVE_BYTES + b"\0").hexdigest()[:12]
        self.builds(self.server.url + ARCHIVE, f"its sha512 checksum is {wrong}…, not {right}…")
        self.assertEqual(self.server.asked, [ARCHIVE])

    def test_a_wrong_checksum_of_the_program_is_refused(self):
        self.server.answers[PROGRAM] = whole(PROGRAM_BYTES[:-1])
        self.builds(self.server.url + PROGRAM, "its sha256 checksum is")

    def test_a_silent_server_costs_two_seconds_and_once(self):
        self.server.answers[ARCHIVE] = silence
        started = time.monotonic()
        self.builds("did not answer within 2 seconds", self.server.url.removeprefix("http://"))
        took = time.monotonic() - started
        self.assertGreater(took, 2)
        self.assertLess(took, 5)
        self.assertEqual(self.server.asked, [ARCHIVE])

    def test_a_server_that_is_silent_after_a_redirect_or_after_its_headers_is_given_up(self):
        self.shorten("patience_at_start", 2000)
        self.server.answers |= {ARCHIVE: redirect("/elsewhere"), "/elsewhere": silence}
        self.builds("did not answer within 1 seconds")
        self.server.answers |= {ARCHIVE: headers_alone}
        self.builds("did not answer within 1 seconds")

    def test_a_server_that_cuts_off_in_the_middle(self):
        self.server.answers[ARCHIVE] = beginning(ARCHIVE_BYTES, cut)
        self.builds(self.server.url + ARCHIVE, "bytes remaining")

    def test_a_server_that_stops_in_the_middle(self):
        self.shorten("patience_in_the_middle", 20000)
        self.server.answers[PROGRAM] = beginning(PROGRAM_BYTES, silence)
        self.builds(self.server.url + PROGRAM, "stopped in the middle", "sent nothing for 1 seconds")

    def test_a_file_that_is_not_there(self):
        del self.server.answers[PROGRAM]
        self.builds(self.server.url + PROGRAM, "404")

    def test_a_server_that_is_not_there(self):
        self.server.close()
        self.builds(self.server.url + ARCHIVE, "Failed to connect")

    def test_a_mirror_that_is_no_url(self):
        self.environment["CONTROL_PLANE_MIRROR"] = "ftp://127.0.0.1"
        self.builds("ftp://127.0.0.1/github.com/", "rotocol")

    def test_an_archive_without_the_programs(self):
        empty = archive("kubectl")
        self.pin(empty, PROGRAM_BYTES)
        self.server.answers[ARCHIVE] = whole(empty)
        self.builds("cannot be unpacked")

    def test_a_machine_for_which_there_is_none(self):
        self.stub("uname", "echo riscv64")
        self.builds("there is no download for riscv64")
        self.assertEqual(self.server.asked, [])

    def test_without_a_mirror_the_sites_are_asked_and_the_second_not_when_the_first_is_away(self):
        del self.environment["CONTROL_PLANE_MIRROR"]
        del self.environment["no_proxy"]
        # Through a proxy, so that no packet leaves this machine.
        self.environment["https_proxy"] = self.server.url
        self.shorten("patience_at_start", 2000)
        self.server.answers["github.com:443"] = silence
        said = self.builds("github.com did not answer within 1 seconds")
        self.assertIn(f"Downloading Kubernetes {RELEASE} from github.com and dl.k8s.io", said)
        self.assertEqual(self.server.asked, ["github.com:443"])

    def test_an_interrupted_download_leaves_nothing(self):
        self.server.answers[ARCHIVE] = beginning(ARCHIVE_BYTES, silence)
        process = self.start(stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        self.until("a part is there", lambda: any(each.stat().st_size for each in self.cache.glob(".download-*/*.gz")))
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=20)
        self.assertEqual(process.returncode, 143)
        self.nothing_stays()

    def test_where_a_download_is_damaged_and_cannot_be_replaced_the_build_is_used(self):
        (self.entry(DOWNLOADED, RELEASE) / "etcd").unlink()
        built = self.entry(BUILT, "1.20.2")
        self.server.answers.clear()
        said = self.succeeds(built)
        self.assertIn("etcd is missing", said)
        self.assertNotIn("Building", said)


class BeforeADownload(Install):
    """What comes before a download."""

    def test_a_build_in_the_cache_is_used_and_says_how_to_get_the_newer_one(self):
        built = self.entry(BUILT, "1.20.2")
        said = self.succeeds(built)
        self.assertIn(f"Kubernetes v1.20.2, which was built from Debian's sources (remove {built} to try", said)
        self.assertEqual(self.server.asked, [])

    def test_a_download_comes_before_a_build(self):
        self.entry(BUILT, "1.20.2")
        self.succeeds(self.entry(DOWNLOADED, RELEASE))

    def test_kubebuilder_assets_come_before_all(self):
        self.entry(DOWNLOADED, RELEASE)
        assets = self.entry("assets", "1.33.0")
        self.environment["KUBEBUILDER_ASSETS"] = str(assets)
        said = self.succeeds(assets)
        self.assertEqual(said, f"==> Kubernetes v1.33.0, from KUBEBUILDER_ASSETS ({assets})\n")
        self.assertEqual(self.server.asked, [])

    def test_a_missing_controller_manager_is_borrowed_from_a_download(self):
        assets = self.entry("assets", "1.33.0")
        (assets / "kube-controller-manager").unlink()
        self.environment["KUBEBUILDER_ASSETS"] = str(assets)
        code, printed, said = self.run_script()
        self.assertEqual(code, 0, said)
        links = {name: (Path(printed.rstrip("\n")) / name).resolve() for name in PROGRAMS}
        self.assertEqual(links["kube-controller-manager"], self.cache / DOWNLOADED / "kube-controller-manager")
        self.assertEqual({links["etcd"].parent, links["kube-apiserver"].parent}, {assets})


class Builds(Install):
    """Where nothing can be downloaded."""

    STEPS = ["update", "source", "unpack", "compile"]

    def setUp(self):
        super().setUp()
        self.server.answers.clear()
        self.root = Path(self.environment["HOME"])
        self.log, self.hangs_at, self.hangs = self.root / "log", self.root / "hangs-at", self.root / "hangs"
        self.hangs_at.write_text("")
        for name in ["df", "id", "dpkg-query"]:
            self.stub(name, {"df": "echo Avail; echo 9999999999", "id": "echo 0"}.get(name, "printf installed"))
        step = f"""step() {{
            echo "$1" >>{self.log}
            [ "$1" != "$(cat {self.hangs_at})" ] || {{ touch {self.hangs}; sleep 600; }}
        }}
        """
        self.stub(
            "apt-get",
            step
            + """case "$*" in
                *indextargets*) echo 'Debian|http://archive|main|Packages' ;;
                *Dir::State*update) step update ;;
                *source*) touch kubernetes_1.dsc; step source ;;
                *download*) touch etcd-server_1.deb golang-github-modern-go-reflect2-dev_1.deb ;;
            esac""",
        )
        self.stub("apt-cache", "echo 'Version: 1.20.5+really1.20.2-1'")
        self.stub(
            "dpkg-source",
            step
            + f"""test ! -e "$4" || exit 1
            mkdir -p "$4/vendor/github.com/modern-go"
            step unpack
            mkdir -p "$4/hack/make-rules"
            printf 'gen_openapi:\\n' >"$4/Makefile.generated_files"
            ln -s {self.stubs}/compile "$4/hack/make-rules/build.sh" """,
        )
        self.stub(
            "dpkg-deb",
            f"""mkdir -p etcd/usr/bin reflect2/usr/share/gocode/src/github.com/modern-go/reflect2
            cp {self.entry("assets", "1.20.2")}/etcd etcd/usr/bin/""",
        )
        self.stub(
            "compile",
            step
            + f"""step compile
            mkdir -p _output/local/go/bin && cp {self.cache}/assets/kube-* _output/local/go/bin/""",
        )

    def test_a_build_that_is_interrupted_at_any_step_goes_on_there(self):
        for step in self.STEPS:
            self.hangs_at.write_text(step)
            self.hangs.unlink(missing_ok=True)
            process = self.start(stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
            self.until(f"it is at {step}", self.hangs.exists)
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=20)
            self.assertEqual(process.returncode, 130, said)
            self.assertFalse((self.cache / BUILT).exists())
        self.hangs_at.write_text("")
        self.succeeds(self.cache / BUILT)
        # What was interrupted is done again, what was complete is not.
        done = ["update", "update", "source", "update", "source", "unpack", "unpack", "compile", "compile"]
        self.assertEqual(self.log.read_text().split(), done)


class OnATerminal(Install):
    """A person starts prepare.sh, which builds the host and starts install.sh, where the packages are missing."""

    def setUp(self):
        super().setUp()
        self.root = Path(self.environment["HOME"])
        (self.root / "plugins").mkdir()
        (self.root / "tests").mkdir()
        (self.root / "tests/control-plane").symlink_to(self.scripts)
        shutil.copy(HERE.parent / "prepare.sh", self.root / "tests")
        self.server.answers[ARCHIVE] = missing
        self.stub("df", "echo Avail; echo 9999999999")
        self.stub("id", "echo 0")
        self.stub("dpkg-query", "exit 1")

    def open_terminal(self) -> int:
        self.child, terminal = pty.fork()
        if self.child == 0:
            try:
                os.execve(self.root / "tests/prepare.sh", ["prepare.sh"], self.environment)
            finally:
                os._exit(127)
        self.addCleanup(os.close, terminal)
        return terminal

    def read_all(self, terminal: int) -> tuple[int, str]:
        """The exit code, and what it said. What is silent for 20 seconds is killed."""
        said = b""
        # A terminal whose program has ended is an error for who reads from it.
        with contextlib.suppress(OSError):
            while select.select([terminal], [], [], 20)[0]:
                said += os.read(terminal, 65536)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.child, signal.SIGKILL)
        _, status = os.waitpid(self.child, 0)
        return os.waitstatus_to_exitcode(status), said.decode()

    def test_apt_get_may_use_the_terminal(self):
        self.stub("cargo", "echo a word of cargo; exit 0")
        # As apt-get does around dpkg. The system stops a program that does so in the background.
        self.stub("apt-get", "stty sane </dev/tty; exit 100")
        code, said = self.read_all(self.open_terminal())
        self.assertEqual(code, 1, said)
        self.assertIn("apt-get update failed", said)
        self.assertIn("there is no control plane", said)

    def test_ctrl_c_stops_the_build_of_the_host_too(self):
        pid = self.root / "cargo"
        self.stub("cargo", f"echo $$ >{pid}.new; mv {pid}.new {pid}; exec sleep 600")
        self.stub("apt-get", f"touch {self.root}/installs; exec sleep 600")
        terminal = self.open_terminal()
        self.until("both are under way", lambda: pid.exists() and (self.root / "installs").exists())
        os.write(terminal, b"\x03")
        code, said = self.read_all(terminal)
        self.assertEqual(code, 130, said)
        self.until("cargo is stopped", lambda: not Path("/proc", pid.read_text().strip()).exists())


class OnePlugin(Install):
    """prepare.sh, for `make run PLUGIN=folder`."""

    def test_the_plugin_that_is_to_run_is_built_and_no_sample(self):
        root = Path(self.environment["HOME"])
        (root / "tests").mkdir()
        (root / "tests/control-plane").symlink_to(self.scripts)
        shutil.copy(HERE.parent / "prepare.sh", root / "tests")
        self.environment["KUBEBUILDER_ASSETS"] = str(self.entry("assets", "1.33.0"))
        self.stub("cargo", "exit 0")
        plugin = root / "greeter"
        plugin.mkdir()
        (plugin / "Makefile").write_text("build/greeter.wasm: crd.json\n\tmkdir -p build && cp $< $@\n")
        for definition in ("old", "new"):
            (plugin / "crd.json").write_text(definition)
            # Make looks at times.
            os.utime(plugin / "crd.json", (2e9, 2e9) if definition == "new" else None)
            ended = subprocess.run(
                [root / "tests/prepare.sh", "run", plugin], env=self.environment, capture_output=True, text=True
            )
            self.assertEqual(ended.returncode, 0, ended.stderr)
            self.assertEqual((plugin / "build/greeter.wasm").read_text(), definition)


class Release(unittest.TestCase):
    """release.sh itself."""

    def test_it_has_a_checksum_of_each_file_for_each_architecture(self):
        show = """source "$1"; printf '%s\\n' "$release" "${archive_sha512[amd64]}" "${archive_sha512[arm64]}" \\
            "${controller_manager_sha256[amd64]}" "${controller_manager_sha256[arm64]}" """
        output = subprocess.run(
            ["bash", "-euc", show, "bash", HERE / "release.sh"], check=True, capture_output=True, text=True
        ).stdout
        self.assertRegex(output, r"\A\d+\.\d+\.\d+\n([0-9a-f]{128}\n){2}([0-9a-f]{64}\n){2}\Z")
        page = (HERE / "../../host/docs/local-cluster.md").read_text()
        self.assertEqual(set(re.findall(r"Kubernetes (\d[\d.]*\d)", page)), {output.split()[0], "1.20.2"})


if __name__ == "__main__":
    # Whoever runs this in the background has it ignored, and so would what is started here.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    unittest.main()
