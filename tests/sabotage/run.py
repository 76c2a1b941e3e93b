"""Puts one fault after the other into a copy of the sources, and sees that the suite which must catch it fails.

Each `*.patch` beside this file is a fault that somebody could make. Its head says what the fault is, which promise it breaks, and
behind `suite:` the arguments of `cargo test` that have to notice. A fault that does not apply, does not compile or hangs is no
fault that was caught: the run fails, and the patch has to be renewed. So does a suite that fails without any fault.

`make sabotage`; some faults: `make sabotage ARGS="--only lease,fence"`. The copy and what is built of it are in target/sabotage.
"""

import argparse
import contextlib
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
TREE, BUILD = ROOT / "target/sabotage/tree", ROOT / "target/sabotage/build"
# What takes longer hangs. The first build is of everything.
BUILD_SECONDS, SUITE_SECONDS = 1800, 300
# Packages without a library. Beside them a package that is tested alone has the features, and so the dependencies, of the
# whole workspace.
BESIDE = ["segue-abuse", "segue-chaos", "segue-instructions", "segue-model", "segue-scale"]
# The copy's own code is built quickly.
PROFILE = "".join(f"[profile.dev.package.{name}]\nopt-level = 0\n" for name in (
    "segue", "segue-config", "segue-coordination", "segue-demo", "segue-grpc", "segue-pod", "segue-protocol", "segue-proxy",
    "segue-simulation", "segue-tests"))


class Fault:
    def __init__(self, path):
        self.path, self.name = path, path.stem
        head = path.read_text().split("\n--- a/")[0]
        self.suite = re.search(r"^suite: (.+)$", head, re.M)[1]

    def apply(self, *how):
        # The copy is inside a repository, whose root the paths would otherwise count from.
        env = os.environ | {"GIT_CEILING_DIRECTORIES": str(TREE.parent)}
        return subprocess.run(["git", "apply", *how, self.path], cwd=TREE, env=env).returncode == 0


def cargo(suite, seconds, *more):
    """Returns the exit code of a suite, which is None if it hangs, and what it printed."""
    words = suite.split()
    beside = [word for name in BESIDE for word in ("-p", name)] if "-p" in words else []
    command = [os.environ.get("CARGO", "cargo"), "test", "--locked", *more, *beside, *words]
    env = os.environ | {"CARGO_TARGET_DIR": str(BUILD), "RUST_BACKTRACE": "0"}
    process = subprocess.Popen(command, cwd=TREE, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                               start_new_session=True)
    try:
        output = process.communicate(timeout=seconds)[0]
        return process.returncode, output
    except subprocess.TimeoutExpired:
        return None, ""
    finally:
        # Also what the tests have started, and upon Ctrl-C.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def judge(suite):
    """Returns what came of a suite, and its output."""
    code, output = cargo(suite, BUILD_SECONDS, "--no-run")
    if code != 0:
        return "does not compile", output
    code, output = cargo(suite, SUITE_SECONDS)
    if code is None:
        return "hangs", output
    if code != 0:
        return "fails" if re.search(r"^test result: FAILED", output, re.M) else "ends without a result", output
    return "passes" if re.search(r"^test result: ok\. [1-9]", output, re.M) else "has no tests", output


def copy_tree():
    """Makes the copy equal to the sources, and leaves alone what is equal already, so that it is not built again."""
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=ROOT, capture_output=True, check=True)
    names = {name for name in listed.stdout.decode().split("\0") if name and (ROOT / name).is_file()}
    for path in [path for path in TREE.rglob("*") if path.is_file() or path.is_symlink()]:
        if str(path.relative_to(TREE)) not in names:
            path.unlink()
    for name in names:
        source, target = ROOT / name, TREE / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.is_file() or target.read_bytes() != source.read_bytes():
            shutil.copy(source, target)
    (TREE / ".cargo").mkdir(exist_ok=True)
    (TREE / ".cargo/config.toml").write_text(PROFILE)
    if (ROOT / ".tools").is_dir():
        (TREE / ".tools").symlink_to(ROOT / ".tools")


def copy_dependencies():
    """Takes over what the working folder has built, but for executables and what only helps to build again."""
    built = ROOT / "target/debug"
    if BUILD.exists() or not built.is_dir():
        return
    for folder in (".fingerprint", "build"):
        shutil.copytree(built / folder, BUILD / "debug" / folder, symlinks=True)
    (BUILD / "debug/deps").mkdir()
    for path in (built / "deps").iterdir():
        if path.suffix in (".d", ".rlib", ".rmeta", ".so"):
            shutil.copy2(path, BUILD / "debug/deps")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="", help="the faults whose names contain one of these, separated by commas")
    only = parser.parse_args().only.split(",")
    faults = [Fault(path) for path in pathlib.Path(__file__).parent.glob("*.patch") if any(part in path.stem for part in only)]
    # Those of one suite one after the other: most of the time is spent on building.
    faults.sort(key=lambda fault: (fault.suite, fault.name))
    copy_tree()
    copy_dependencies()
    broken = {}
    for suite in sorted({fault.suite for fault in faults}):
        result, output = judge(suite)
        print(f"sabotage: without a fault: cargo test {suite}: {result}", flush=True)
        if result != "passes":
            broken[suite] = print(output)
    caught = 0
    for fault in faults:
        begun = time.monotonic()
        if fault.suite in broken:
            result, output = "not tried, because its suite does not pass without it", ""
        elif not fault.apply():
            result, output = "does not apply", ""
        else:
            result, output = judge(fault.suite)
            fault.apply("-R")
        verdict = {"fails": "caught", "passes": "SURVIVED"}.get(result, f"NOT TESTED: {result}")
        print(f"sabotage: {verdict}: {fault.name} ({time.monotonic() - begun:.0f} s)", flush=True)
        caught += result == "fails"
        if result not in ("fails", "passes"):
            print(output)
    print(f"sabotage: patches={len(faults)} caught={caught}")
    return int(caught < len(faults) or not faults)


if __name__ == "__main__":
    sys.exit(main())
