"""A registry of images: `skopeo` pushes images under ever new tags, some with layers of a megabyte, and pulls them again.
In the end each tag has the layer with which its push was acknowledged. A layer is content under its own digest, so
`skopeo` itself notices one that is damaged.

The registry's process cannot note its work for the test, so what shows here that two pods worked at once is what clients see.
"""

import asyncio
import gzip
import hashlib
import json
import os
import re
import shutil
import time

from harm import ANY

from .service import Service

REPOSITORIES = 6
SMALL, LARGE = 5_000, 1_500_000
INDEX, MANIFEST = "application/vnd.oci.image.index.v1+json", "application/vnd.oci.image.manifest.v1+json"
CONFIG, LAYER = "application/vnd.oci.image.config.v1+json", "application/vnd.oci.image.layer.v1.tar+gzip"
LONGEST = 90
# What skopeo prints of an exchange that broke.
BROKEN = ("EOF", "connection reset", "stream error", "broken pipe", "connection refused")


class Registry(Service):
    name, program, prefix, key = "registry", "registry.py", "/v2", {"path": "/v2/{key}"}
    # Clients look at `/v2/` first.
    without_key = "any"
    clients = REPOSITORIES

    def __init__(self, *rest):
        super().__init__(*rest)
        self.pushed = {}  # by repository and tag: the digest of the layer
        self.partitions = {}  # by repository
        self.pulls = 0

    def command_of(self, pod):
        """Returns the command line of the pod's service, which its program has become."""
        return f"docker-registry serve {os.path.join(self.folder, pod.name)}.yml"

    async def skopeo(self, *command):
        process = await asyncio.create_subprocess_exec(
            "skopeo", "--insecure-policy", "--command-timeout", f"{LONGEST}s", *command,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )
        output, _ = await process.communicate()
        return process.returncode, output.decode()

    async def prepare(self):
        for number in range(REPOSITORIES):
            repository = f"repository-{number}"
            code, said = await self.site.operate_in(self.name, "explain", "--key", repository, "--json")
            assert code == 0, said
            self.partitions[repository] = json.loads(said)["partition"]

    def partitions_of_keys(self):
        return self.partitions

    def image(self, folder, content):
        """Writes an image of one layer. Returns the layer's digest."""
        def blob(content):
            digest = hashlib.sha256(content).hexdigest()
            with open(os.path.join(folder, "blobs", "sha256", digest), "wb") as out:
                out.write(content)
            return {"digest": f"sha256:{digest}", "size": len(content)}

        shutil.rmtree(folder, ignore_errors=True)
        os.makedirs(os.path.join(folder, "blobs", "sha256"))
        # `skopeo` would compress a layer that is not.
        stored = blob(gzip.compress(content, 1))
        diff = f"sha256:{hashlib.sha256(content).hexdigest()}"
        config = {"architecture": "amd64", "os": "linux", "config": {}, "rootfs": {"type": "layers", "diff_ids": [diff]}}
        manifest = {"schemaVersion": 2, "mediaType": MANIFEST,
                    "config": {"mediaType": CONFIG} | blob(json.dumps(config).encode()),
                    "layers": [{"mediaType": LAYER} | stored]}
        index = {"schemaVersion": 2, "manifests": [{"mediaType": MANIFEST} | blob(json.dumps(manifest).encode())]}
        for name, content in (("index.json", index), ("oci-layout", {"imageLayoutVersion": "1.0.0"})):
            with open(os.path.join(folder, name), "w", encoding="utf-8") as out:
                json.dump(content, out)
        return stored["digest"]

    async def client(self, number):
        random, repository = self.random_of(number), f"repository-{number}"
        folder = os.path.join(self.folder, f"image-{number}")
        for count in range(1_000_000):
            if self.is_over():
                return
            tag = f"tag-{count}"
            layer = self.image(folder, random.randbytes(LARGE if random.random() < 0.2 else SMALL))
            # Half of the clients use HTTPS, and with it HTTP/2.
            if await self.over_http(number, repository, "copy", f"oci:{folder}", self.reference(number, repository, tag)):
                self.pushed[repository, tag] = layer
            if random.random() < 0.2 and (repository, tag) in self.pushed:
                await self.pull(number, repository, tag)
            await asyncio.sleep(random.uniform(0.05, 0.5))

    def reference(self, number, repository, tag):
        return f"docker://127.0.0.1:{(self.site.port, self.site.tls_port)[number % 2]}/{repository}:{tag}"

    async def over_http(self, number, repository, command, *paths):
        began, side = time.time(), "src" if paths[0].startswith("docker:") else "dest"
        code, said = await self.skopeo(command, f"--{side}-tls-verify=false", *paths)
        if code == 0:
            self.succeeded(began)
            return True
        # It asks for `/v2/` first, of any pod. If that breaks, it asks again without TLS.
        is_ping = "pinging container registry" in said
        is_broken = is_ping or any(text in said for text in BROKEN) or re.search(r"\b50[02]\b", said) is not None
        what = f"skopeo {command} {paths}: {said[-500:]}"
        self.failed(ANY if is_ping else repository, began, what, is_broken)
        return False

    async def pull(self, number, repository, tag):
        """Pulls an image and compares its layer."""
        folder = os.path.join(self.folder, f"pulled-{number}")
        shutil.rmtree(folder, ignore_errors=True)
        if await self.over_http(number, repository, "copy", self.reference(number, repository, tag), f"dir:{folder}"):
            self.pulls += 1
            with open(os.path.join(folder, "manifest.json"), encoding="utf-8") as manifest:
                found = [layer["digest"] for layer in json.load(manifest)["layers"]]
            if found != [self.pushed[repository, tag]]:
                self.harm.add(self.name, f"{repository}:{tag} has {found}, pushed {self.pushed[repository, tag]}")

    async def check(self):
        for number in range(REPOSITORIES):
            tags = [tag for repository, tag in self.pushed if repository == f"repository-{number}"]
            # All of them would take minutes.
            for tag in tags[-10:]:
                await self.pull(number, f"repository-{number}", tag)
        missing = [f"{repository}:{tag}" for repository, tag in self.pushed if not self.is_stored(repository, tag)]
        for name in missing:
            self.harm.add(self.name, f"{name} was acknowledged and is missing")

    def is_stored(self, repository, tag):
        """Returns whether the registry's storage has the tag."""
        storage = os.path.join(self.folder, "registry", "docker", "registry", "v2", "repositories")
        return os.path.exists(os.path.join(storage, repository, "_manifests", "tags", tag, "current", "link"))

    def summary(self):
        return f"{len(self.pushed)} pushes and {self.pulls} pulls, in the end the tags of each repository"
