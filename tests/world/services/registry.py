"""The registry of images of the project Distribution, as Debian packages it (`docker-registry`), with its storage in the
folder that all pods share."""

import json
import os

import options

ARGUMENTS, _ = options.parse()
CONFIG = os.path.join(ARGUMENTS.folder, f"{ARGUMENTS.name}.yml")
with open(CONFIG, "w", encoding="utf-8") as out:
    # JSON is YAML.
    json.dump({
        "version": 0.1,
        "log": {"level": "error", "accesslog": {"disabled": True}},
        "storage": {"filesystem": {"rootdirectory": os.path.join(ARGUMENTS.folder, "registry")}},
        # An upload that one pod began is signed with the secret, and the next owner has to know it.
        "http": {"addr": f"127.0.0.1:{ARGUMENTS.port}", "secret": "of all pods", "relativeurls": True},
    }, out)
os.execvp("docker-registry", ["docker-registry", "serve", CONFIG])
