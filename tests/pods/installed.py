"""Installs the package for Python as a stranger would, in an environment of its own, and runs its tests with that."""

import os
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
CLIENT = os.path.join(ROOT, "clients/python")


def main():
    with tempfile.TemporaryDirectory(prefix="segue-pods-") as folder:
        python = os.path.join(folder, "bin/python")
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        # Not from this folder, which would be on the path of modules.
        run = lambda *words: subprocess.run([python, "-B", *words], cwd=folder, check=True)  # noqa: E731
        run("-m", "pip", "install", "--quiet", "--disable-pip-version-check", CLIENT)
        run("-c", f"import segue_pod; assert segue_pod.__file__.startswith({folder!r})")
        run("-W", "ignore", "-m", "unittest", "discover", "--start-directory", os.path.join(CLIENT, "tests"))


if __name__ == "__main__":
    main()
