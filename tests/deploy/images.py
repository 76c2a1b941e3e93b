"""Makes images from programs of this machine, each with the libraries that it loads: no registry may be within reach.

They have the form of the project's own image: no shell, no packages, and no user but 65532.
"""

import os
import re
import shutil
import subprocess


def find(program):
    return shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin")


def make_image(name, folder, programs, *changes, trees=()):
    """`programs` are put into /usr/bin; `trees` are pairs of a file or folder and its path in the image."""
    root = os.path.join(folder, name.replace(":", "-").replace("/", "-"))
    os.makedirs(f"{root}/usr/bin")
    for program in map(find, programs):
        shutil.copy(os.path.realpath(program), f"{root}/usr/bin/{os.path.basename(program)}")
        for library in re.findall(r"/\S+", subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout):
            os.makedirs(root + os.path.dirname(library), exist_ok=True)
            shutil.copy(os.path.realpath(library), root + library)
    unneeded = shutil.ignore_patterns("test", "site-packages", "dist-packages", "idlelib", "ensurepip", "config-*", "tkinter")
    for source, target in trees:
        if os.path.isdir(source):
            shutil.copytree(source, root + target, ignore=unneeded)
        else:
            os.makedirs(root + os.path.dirname(target), exist_ok=True)
            shutil.copy(source, root + target)
    for writable in ("/tmp", "/var/lib/etcd", "/var/lib/nginx", "/var/log/nginx"):
        os.makedirs(root + writable)
        os.chmod(root + writable, 0o777)
    os.makedirs(f"{root}/etc")
    with open(f"{root}/etc/passwd", "w", encoding="utf-8") as out:
        out.write("nobody:x:65532:65532::/:/\n")
    with open(f"{root}/etc/nsswitch.conf", "w", encoding="utf-8") as out:
        out.write("hosts: files dns\n")
    tar = subprocess.Popen(["tar", "-C", root, "-c", "."], stdout=subprocess.PIPE)
    arguments = [argument for change in ("ENV PATH=/usr/bin", "USER 65532:65532", *changes) for argument in ("--change", change)]
    subprocess.run(["docker", "import", *arguments, "-", name], stdin=tar.stdout, check=True, capture_output=True)
    assert tar.wait() == 0, name
    shutil.rmtree(root)
