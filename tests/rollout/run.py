"""Rolling updates of what deploy/ ships, under a checked load: every request is answered by a service, and no write is harmed.

The pods are Docker containers, run by a stand-in for the kubelet (`kubelet.py`) exactly as the rendered manifests say: order of
the containers, probes, preStop hooks, grace periods, users, read-only file systems. Routers and coordinators are those of the Helm
chart, writers those of the kustomizations `writer` and `writer-pre-stop`. etcd is a real one.

`make rollout`, `make rollout ARGS=--short` for the writers alone, or with a mistake that has to be found:
`make rollout ARGS="--short --sabotage no-pre-stop"`.
"""

import argparse
import copy
import json
import os
import sys
import sysconfig
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.normpath(os.path.join(HERE, "..", ".."))
sys.path += [os.path.dirname(HERE), os.path.join(HERE, "..", "deploy")]

from controllers import Deployment, StatefulSet  # noqa: E402
from harness.front import Front  # noqa: E402
from harness.load import Load  # noqa: E402
from harness.processes import folder_of_processes  # noqa: E402
from harness.waiting import until  # noqa: E402
from images import make_image  # noqa: E402
from kubelet import Host, docker  # noqa: E402
from manifests import charted, kustomized  # noqa: E402

VALUES = {
    "keyspace": "orders",
    "router": {"config": '[router]\nlisten = "0.0.0.0:8080"\n[router.partition]\nheader = "x-partition"\n'},
}
PARTITIONS = 64


def find(documents, kind, name):
    found, = (one for one in documents if one["kind"] == kind and one["metadata"]["name"].endswith(name))
    return found


def without_pre_stop(manifest):
    """Returns the manifest without the preStop hooks: a mistake that has to be found."""
    manifest = copy.deepcopy(manifest)
    for container in manifest["spec"]["template"]["spec"]["containers"]:
        container.pop("lifecycle", None)
    return manifest


def in_usual_order(manifest):
    """Returns the manifest with both containers in the usual order and no hook: a mistake that has to be found."""
    manifest = copy.deepcopy(manifest)
    spec = manifest["spec"]["template"]["spec"]
    spec["containers"] = spec.pop("initContainers") + spec["containers"]
    del spec["containers"][0]["restartPolicy"]
    return manifest


class Site:
    def __init__(self, arguments, folder):
        self.segue, self.folder = os.path.abspath(arguments.segue), folder
        self.name = f"segue-rollout-{os.getpid()}"
        images = {part: f"{self.name}-{part}" for part in ("segue", "writer", "etcd", "pause")}
        self.made = [image for part, image in images.items() if not (part == "segue" and arguments.image)]
        if arguments.image:
            images["segue"] = arguments.image
        else:
            make_image(images["segue"], folder, [self.segue], 'ENTRYPOINT ["segue"]')
        python, library = os.path.realpath(sys.executable), sysconfig.get_path("stdlib")
        service = ["python3", "/srv/service.py", "--keyspace", "orders", "--log", "/log"]
        make_image(images["writer"], folder, [python, self.segue], "ENV PYTHONHOME=/usr", f"ENTRYPOINT {json.dumps(service)}", trees=[
            (python, "/usr/bin/python3"), (library, f"/usr/lib/{os.path.basename(library)}"),
            (os.path.join(HERE, "service.py"), "/srv/service.py"),
            (os.path.join(ROOT, "examples/python-writer/writer.py"), "/srv/writer.py"),
        ])
        make_image(images["etcd"], folder, ["etcd"])
        make_image(images["pause"], folder, ["sleep"], 'ENTRYPOINT ["sleep", "infinity"]')
        self.host = Host(self.name, folder, images, images["pause"])
        self.log = self.host.path("log")
        self.host.mounts["writer"] = [(self.log, "/log")]
        self.controllers = []

    def start(self, replicas, sabotage):
        self.host.run("etcd", "--network", self.name, "--network-alias", "etcd", self.host.image("etcd"), "etcd",
                      "--data-dir", "/tmp/etcd", "--listen-client-urls", "http://0.0.0.0:2379",
                      "--advertise-client-urls", "http://etcd:2379")
        chart, = charted(VALUES)
        usual, reversed_order = (kustomized(f"deploy/kubernetes/{one}") for one in ("writer-pre-stop", "writer"))
        for documents in (chart, usual, reversed_order):
            self.host.add(documents)
        self.usual, self.reversed_order = (find(one, "StatefulSet", "writer") for one in (usual, reversed_order))
        self.router, self.coordinator = (find(chart, "Deployment", one) for one in ("router", "coordinator"))
        if sabotage == "no-pre-stop":
            self.usual = without_pre_stop(self.usual)
        elif sabotage == "no-order":
            self.reversed_order = in_usual_order(self.reversed_order)
        elif sabotage == "router-no-pre-stop":
            self.router = without_pre_stop(self.router)
        self.front = Front(lambda pod: (pod.ip, 8080))
        self.coordinators = Deployment(self.host, self.coordinator)
        self.routers = Deployment(self.host, self.router, self.front)
        # The short form with a mistake has one update, which ends pods that were started with it.
        first = self.usual if sabotage == "no-pre-stop" else self.reversed_order
        self.writers = StatefulSet(self.host, first, replicas)
        self.controllers = [self.coordinators, self.routers, self.writers]
        for pod in self.pods():
            pod.until_ready()
        until(lambda: self.settled(replicas), "the first placement")

    def pods(self):
        return [pod for controller in self.controllers for pod in controller.pods]

    def status(self):
        output = docker("exec", self.coordinators.pods[0].main[0].docker_name, "segue", "status", "--json",
                        "--config", "/etc/segue/segue.toml", check=False)
        return json.loads(output) if output else None

    def settled(self, replicas):
        status = self.status()
        return (status and status["partitions"] == PARTITIONS and status["unowned"] == 0 and not status["handoffs"]
                and len(status["pods"]) == replicas and all(pod["partitions"] > 0 for pod in status["pods"]))

    def remove(self):
        self.host.remove()
        docker("rmi", "--force", *self.made, check=False)


def updates(site, short, sabotage):
    """Returns the updates as pairs of a description and what makes it. A pod ends as the manifest says that it was started with."""
    # The first update that a mistake harms.
    harmed = {"no-order": 0, "no-pre-stop": 1}
    writers = [
        ("writers, the service outlives its sidecar", lambda: site.writers.update(site.usual)),
        ("writers with a preStop hook, the service's end begins first", lambda: site.writers.update(site.usual, "writer")),
        ("writers with a preStop hook, the sidecar's end begins first", lambda: site.writers.update(site.reversed_order, "segue")),
    ]
    if short:
        return writers if sabotage is None else [writers[harmed[sabotage]]]
    return writers + [
        ("coordinators", lambda: site.coordinators.update(site.coordinator)),
        ("routers", lambda: site.routers.update(site.router)),
        *writers,
    ]


def run(site, arguments):
    """Returns whether nothing was lost."""
    began = time.monotonic()
    site.start(2 if arguments.short else 3, arguments.sabotage)
    print(f"started | {time.monotonic() - began:.1f}s", flush=True)
    load = Load(site.segue, site.front.port, PARTITIONS, site.log, site.folder)
    faults, count = [], 0
    try:
        until(load.has_written, "the first writes of the load")
        for what, update in updates(site, arguments.short, arguments.sabotage):
            began = time.monotonic()
            ended = update()
            count += len(ended)
            found = [f"{pod.name}: {fault}" for pod in ended + site.pods() for fault in pod.faults]
            notes = sorted({note for pod in ended for note in pod.notes})
            print(f"{what} | {len(ended)} pods | {'; '.join(notes + found)} | {time.monotonic() - began:.1f}s", flush=True)
            faults += found
    except BaseException:
        load.kill()
        raise
    requests, texts, lost = load.end()
    for text in (*faults, *texts):
        print(f"    {text}")
    print(f"rollout: updates={count} requests={requests} lost={lost}")
    return lost == 0 and not faults


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--segue", required=True, help="the binary")
    arguments.add_argument("--image", help="an image of Segue to run, in place of one that is made from the binary")
    arguments.add_argument("--short", action="store_true", help="two writers, each updated three times; with a mistake, once")
    arguments.add_argument("--sabotage", choices=["no-pre-stop", "no-order", "router-no-pre-stop"], help="make this mistake")
    parser, arguments = arguments, arguments.parse_args()
    if arguments.short and arguments.sabotage == "router-no-pre-stop":
        parser.error("the short form updates no router")
    with folder_of_processes("rollout") as folder:
        site = Site(arguments, folder)
        try:
            return run(site, arguments)
        except AssertionError:
            for pod in site.pods():
                print(pod.logs(), file=sys.stderr)
            raise
        finally:
            site.remove()


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
