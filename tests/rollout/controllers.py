"""Stand-ins for the controllers of workloads: rolling updates."""

import itertools
import threading

from kubelet import Pod

# How late a node learns that an endpoint is gone.
LAG = 3.0


class StatefulSet:
    """Updates one pod after the other, from the last to the first, each under the name that it had."""

    def __init__(self, host, manifest, replicas):
        self.host, self.name, self.revision = host, manifest["metadata"]["name"], 1
        self.pods = [self.make(manifest, ordinal).start() for ordinal in range(replicas)]

    def make(self, manifest, ordinal):
        labels = {"controller-revision-hash": f"{self.name}-{self.revision}"}
        return Pod(self.host, f"{self.name}-{ordinal}", manifest["spec"]["template"], labels)

    def update(self, manifest, first=None):
        """`first`: the container of the old pods whose end begins before that of the others. Returns the pods that have ended."""
        self.revision += 1
        old = list(self.pods)
        for ordinal in reversed(range(len(old))):
            old[ordinal].end(first)
            self.pods[ordinal] = self.make(manifest, ordinal).start()
            self.pods[ordinal].until_ready()
        return old


class Deployment:
    """Starts a new pod before it ends an old one: `maxSurge: 1` and `maxUnavailable: 0`."""

    def __init__(self, host, manifest, front=None):
        assert manifest["spec"]["strategy"]["rollingUpdate"] == {"maxUnavailable": 0, "maxSurge": 1}
        self.host, self.name, self.front = host, manifest["metadata"]["name"], front
        self.made = itertools.count()
        self.pods = [self.make(manifest) for _ in range(manifest["spec"]["replicas"])]

    def make(self, manifest):
        pod = Pod(self.host, f"{self.name}-{next(self.made)}", manifest["spec"]["template"], {}).start()
        if self.front:
            self.front.backends.append(pod)
        return pod

    def update(self, manifest):
        """Returns the pods that have ended."""
        old, self.pods, threads = self.pods, [], []
        for pod in old:
            self.pods.append(self.make(manifest))
            self.pods[-1].until_ready()
            threads.append(threading.Thread(target=self.end, args=(pod,)))
            threads[-1].start()
        for thread in threads:
            thread.join()
        return old

    def end(self, pod):
        if self.front:
            threading.Timer(LAG, self.front.backends.remove, [pod]).start()
        pod.end()
