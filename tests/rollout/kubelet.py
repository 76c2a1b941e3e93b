"""A stand-in for the kubelet: runs a pod of a manifest as Docker containers, and ends it as Kubernetes documents.

* Containers of a pod share a network namespace, which is that of a container that does nothing.
* An init container with `restartPolicy: Always` starts before the others and gets SIGTERM only once all others have ended.
* At the end all preStop hooks begin at once. A container gets SIGTERM when its own hook has ended, and SIGKILL when
  `terminationGracePeriodSeconds` have passed since the beginning.

It never restarts a container. One that exits by itself, fails its liveness probe or has to be killed is a fault of the pod.
"""

import json
import os
import re
import subprocess
import threading
import time

from harness.web import is_up

# Between the SIGTERMs of two containers, when one of them is to be the first: it has ended by then, or has this much of a lead.
LEAD = 1.0
PATIENCE = 60.0


def docker(*arguments, check=True):
    output = subprocess.run(["docker", *arguments], capture_output=True, text=True, check=False)
    assert not check or output.returncode == 0, f"docker {' '.join(arguments)}: {output.stderr}"
    return output.stdout.strip()


def main_and_beside(spec):
    """Returns the names of the containers that end first, and of those that outlive them."""
    beside = [one["name"] for one in spec.get("initContainers", []) if one.get("restartPolicy") == "Always"]
    return [one["name"] for one in spec["containers"]], beside


class Host:
    """What pods share: the network, the images, the ConfigMaps as files, and folders that stand in for what is elsewhere."""

    def __init__(self, name, folder, images, pause):
        self.name, self.folder, self.images, self.pause = name, folder, images, pause
        self.mounts, self.made = {}, 0
        docker("network", "create", name)

    def add(self, documents):
        for document in documents:
            if document["kind"] == "ConfigMap":
                path = self.path("config", document["metadata"]["name"])
                for name, text in document["data"].items():
                    with open(os.path.join(path, name), "w", encoding="utf-8") as out:
                        out.write(text)

    def path(self, *parts):
        path = os.path.join(self.folder, *parts)
        os.makedirs(path, exist_ok=True)
        os.chmod(path, 0o777)
        return path

    def image(self, name):
        return self.images[name.rsplit("/", 1)[-1].split(":")[0]]

    def run(self, name, *arguments):
        return docker("run", "--detach", "--name", f"{self.name}-{name}", "--label", f"segue.run={self.name}", *arguments)

    def remove(self):
        ours = docker("ps", "--all", "--quiet", "--filter", f"label=segue.run={self.name}", check=False).split()
        if ours:
            docker("rm", "--force", "--volumes", *ours, check=False)
        docker("network", "rm", self.name, check=False)


class Container:
    def __init__(self, pod, spec):
        self.pod, self.spec, self.name = pod, spec, spec["name"]
        self.docker_name = f"{pod.host.name}-{pod.id}-{self.name}"
        self.ending, self.exited, self.code = False, threading.Event(), None

    def start(self):
        host, pod, spec = self.pod.host, self.pod, self.spec
        arguments = ["--network", f"container:{pod.pause}"]
        context = {**pod.spec.get("securityContext", {}), **spec.get("securityContext", {})}
        if "runAsUser" in context:
            arguments += ["--user", f"{context['runAsUser']}:{context.get('runAsGroup', 0)}"]
        if context.get("readOnlyRootFilesystem"):
            arguments += ["--read-only"]
        if context.get("allowPrivilegeEscalation") is False:
            arguments += ["--security-opt", "no-new-privileges"]
        for capability in context.get("capabilities", {}).get("drop", []):
            arguments += ["--cap-drop", capability]
        if "memory" in spec.get("resources", {}).get("limits", {}):
            arguments += ["--memory", re.sub("i$", "", spec["resources"]["limits"]["memory"]).lower()]
        for name, value in pod.environment(spec).items():
            arguments += ["--env", f"{name}={value}"]
        for mount in spec.get("volumeMounts", []):
            arguments += ["--volume", f"{pod.volumes[mount['name']]}:{mount['mountPath']}{':ro' if mount.get('readOnly') else ''}"]
        for source, target in host.mounts.get(self.name, []):
            arguments += ["--volume", f"{source}:{target}"]
        command = spec.get("command", [])
        if command:
            arguments += ["--entrypoint", command[0]]
        host.run(f"{pod.id}-{self.name}", *arguments, host.image(spec["image"]), *command[1:], *spec.get("args", []))
        threading.Thread(target=self.watch, daemon=True).start()

    def watch(self):
        self.code = docker("wait", self.docker_name, check=False)
        if not self.ending:
            self.pod.faults.append(f"{self.name} exited by itself with {self.code}: {self.log()}")
        self.exited.set()

    def log(self):
        both = subprocess.run(["docker", "logs", "--tail", "15", self.docker_name], check=False, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        return both.stdout

    def probe(self, kind):
        """Returns whether the probe succeeds, or None without one."""
        get = self.spec.get(kind, {}).get("httpGet")
        if get is None:
            return None
        ports = {port["name"]: port["containerPort"] for port in self.spec.get("ports", [])}
        return is_up(f"http://{self.pod.ip}:{ports.get(get['port'], get['port'])}{get['path']}",
                     self.spec[kind].get("timeoutSeconds", 1))

    def end(self, deadline, wait_for):
        """Ends the container; `wait_for` are those that have to be gone before it gets SIGTERM."""
        try:
            self.end_in_order(deadline, wait_for)
        except Exception as error:  # noqa: BLE001: nobody sees an error of a thread
            self.pod.faults.append(f"{self.name} was not ended as it has to be: {error!r}")

    def end_in_order(self, deadline, wait_for):
        left = lambda: max(deadline - time.monotonic(), 0.1)  # noqa: E731
        hook = self.spec.get("lifecycle", {}).get("preStop", {})
        if "sleep" in hook:
            self.exited.wait(min(hook["sleep"]["seconds"], left()))
        elif "exec" in hook:
            command = ["docker", "exec", self.docker_name, *hook["exec"]["command"]]
            try:
                output = subprocess.run(command, capture_output=True, text=True, check=False, timeout=left())
                if output.returncode == 0:
                    self.pod.notes.append(f"{self.name}'s preStop hook: {output.stdout.strip()}")
                else:
                    # A sidecar that is ended at the same time may have drained the pod and gone before the hook asks it.
                    alone = any(other.exited.wait(min(5, left())) for other in self.pod.containers if other is not self)
                    said = f"the preStop hook of {self.name} exited with {output.returncode}: {output.stderr.strip()}"
                    (self.pod.notes if alone else self.pod.faults).append(said)
            except subprocess.TimeoutExpired:
                self.pod.faults.append(f"the preStop hook of {self.name} took longer than the grace period")
        else:
            assert not hook, f"a preStop hook of another kind: {hook}"
        for other in wait_for:
            other.exited.wait(left())
        self.ending = True
        docker("kill", "--signal", "TERM", self.docker_name, check=False)
        if not self.exited.wait(left()):
            self.pod.faults.append(f"{self.name} was killed at the end of the grace period: {self.log()}")
            docker("kill", self.docker_name, check=False)
            self.exited.wait(PATIENCE)
        if self.code not in ("0", "143"):
            self.pod.faults.append(f"{self.name} ended with {self.code}: {self.log()}")


class Pod:
    """A pod of a template. `labels` are those that its controller adds."""

    def __init__(self, host, name, template, labels):
        host.made += 1
        self.host, self.name, self.id = host, name, f"{name}.{host.made}"
        self.spec, self.labels = template["spec"], {**template["metadata"]["labels"], **labels}
        self.faults, self.notes, self.ready, self.over = [], [], False, threading.Event()
        self.volumes = {volume["name"]: self.volume(volume) for volume in self.spec.get("volumes", [])}
        _, beside = main_and_beside(self.spec)
        self.before = [Container(self, one) for one in self.spec.get("initContainers", [])]
        assert [one.name for one in self.before] == beside, "init containers that end are not supported"
        self.main = [Container(self, one) for one in self.spec["containers"]]
        self.containers = self.before + self.main

    def volume(self, volume):
        if "configMap" in volume:
            return self.host.path("config", volume["configMap"]["name"])
        assert "emptyDir" in volume, f"a volume of another kind: {volume}"
        return self.host.path("volumes", self.id, volume["name"])

    def environment(self, container):
        def field(path):
            label = re.fullmatch(r"metadata\.labels\['(.*)'\]", path)
            return self.labels[label[1]] if label else {"status.podIP": self.ip, "metadata.name": self.name}[path]

        found = {}
        for variable in container.get("env", []):
            value = variable.get("value")
            if value is None:
                value = field(variable["valueFrom"]["fieldRef"]["fieldPath"])
            found[variable["name"]] = re.sub(r"\$\((\w+)\)", lambda name: found.get(name[1], name[0]), value)
        return found

    def start(self):
        self.pause = self.host.run(self.id, "--network", self.host.name, "--hostname", self.name, self.host.pause)
        networks = json.loads(docker("inspect", "--format", "{{json .NetworkSettings.Networks}}", self.pause))
        self.ip = networks[self.host.name]["IPAddress"]
        for container in self.containers:
            container.start()
        for container in self.containers:
            threading.Thread(target=self.probe, args=(container, "livenessProbe"), daemon=True).start()
        threading.Thread(target=self.probe_readiness, daemon=True).start()
        return self

    def probe(self, container, kind):
        settings, failures = container.spec.get(kind), 0
        while settings and not self.over.wait(settings.get("periodSeconds", 10)):
            failures = 0 if container.probe(kind) else failures + 1
            if failures == settings.get("failureThreshold", 3):
                self.faults.append(f"{container.name} would be restarted: its {kind} failed {failures} times")

    def probe_readiness(self):
        probed = [one for one in self.containers if "readinessProbe" in one.spec]
        period = min((one.spec["readinessProbe"].get("periodSeconds", 10) for one in probed), default=1)
        failures = {one.name: 0 for one in probed}
        while not self.over.wait(period):
            for one in probed:
                failures[one.name] = 0 if one.probe("readinessProbe") else failures[one.name] + 1
            if not any(failures.values()):
                self.ready = True
            elif any(failures[one.name] >= one.spec["readinessProbe"].get("failureThreshold", 3) for one in probed):
                self.ready = False

    def until_ready(self):
        deadline = time.monotonic() + PATIENCE
        while not self.ready:
            assert not self.faults and time.monotonic() < deadline, f"{self.name} is not ready: {self.faults}\n{self.logs()}"
            time.sleep(0.1)

    def end(self, first=None):
        """Deletes the pod. `first`: the container whose end begins before that of the others."""
        deadline = time.monotonic() + self.spec.get("terminationGracePeriodSeconds", 30)
        # From its deletion on a pod takes no part in Services, and its probes no longer count.
        self.over.set()
        threads = []
        for container in sorted(self.main, key=lambda one: one.name != first):
            threads.append(threading.Thread(target=container.end, args=(deadline, [])))
            threads[-1].start()
            if container.name == first:
                container.exited.wait(LEAD)
        for place, container in enumerate(self.before):
            later = self.main + self.before[place + 1:]
            threads.append(threading.Thread(target=container.end, args=(deadline, later)))
            threads[-1].start()
        for thread in threads:
            thread.join()
        docker("rm", "--force", "--volumes", self.pause, *(one.docker_name for one in self.containers), check=False)

    def logs(self):
        return "\n".join(f"--- {self.name}: {one.name}\n{one.log()}" for one in self.containers)
