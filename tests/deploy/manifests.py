"""The manifests of deploy/: rendered by the real kustomize and the real Helm, and compared with Kubernetes' schemas.

There is no Kubernetes here, so nothing is applied. The checks compare what a schema cannot: names, ports, grace periods.
"""

import functools
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib

import helm_python
import kubernetes_validate
import yaml

ROOT = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
CHART = os.path.join(ROOT, "deploy/helm/segue")
KUSTOMIZATIONS = ["deploy/kubernetes", "deploy/kubernetes/monitoring", "deploy/kubernetes/writer"]
VERSIONS = ["1.30", "1.37"]
# Kinds of the Prometheus Operator: Kubernetes' schemas do not have them.
FOREIGN = {"PodMonitor", "PrometheusRule"}
VALUES = {
    "defaults": {},
    "everything": {
        "keyspace": "42",
        "image": {"repository": "example.org/segue", "tag": "1"},
        "imagePullSecrets": [{"name": "pull"}],
        "store": {"endpoints": ["https://a:2379", "https://b:2379"], "credentialsSecret": "etcd", "tlsSecret": "etcd-tls"},
        "router": {
            "service": {"type": "LoadBalancer", "port": 8080, "annotations": {"a": "b"}},
            "autoscaling": {"enabled": True}, "podAnnotations": {"a": "1"}, "nodeSelector": {"disk": "ssd"},
            "tolerations": [{"key": "only", "operator": "Exists"}],
            "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "In", "values": ["b"]}]}]}}},
        },
        "coordinator": {"podAnnotations": {"a": "1"}, "replicas": 3},
        "monitoring": {"podMonitor": True, "rules": True, "dashboard": True, "labels": {"release": "prometheus"}},
    },
    "least": {"networkPolicy": {"enabled": False}, "podDisruptionBudget": {"enabled": False}, "router": {"preStopSeconds": 0}},
}
REFUSED = [
    {"routers": {}}, {"router": {"replica": 2}}, {"router": {"replicas": 0}}, {"store": {"endpoints": []}},
    {"store": {"endpoints": ["etcd:2379"]}}, {"keyspace": "a b"}, {"image": {"pullPolicy": "always"}},
    {"router": {"service": {"port": 70000}}}, {"monitoring": {"rules": "yes"}},
]


@functools.cache
def rendered():
    """Returns the documents of each kustomization and each set of values."""
    sets = {}
    kubectl = os.path.join(os.path.dirname(sys.executable), "kubectl")
    for folder in KUSTOMIZATIONS:
        command = [kubectl, "kustomize", os.path.join(ROOT, folder)]
        output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        sets[folder] = [document for document in yaml.safe_load_all(output) if document]
    # A writer without routers would be incomplete to what compares them.
    sets["deploy/kubernetes and writer"] = sum((sets[folder] for folder in KUSTOMIZATIONS), [])
    with helm_python.Chart.load(CHART) as chart:
        for name, values in VALUES.items():
            files = chart.render(values, name="shop", namespace="shop")
            texts = [text for path, text in files.items() if not path.endswith("NOTES.txt")]
            sets[f"helm: {name}"] = [one for text in texts for one in yaml.safe_load_all(text) if one]
    return sets


def fits_schemas(document):
    """Returns the problems of a document with the strict schemas: fields that do not exist are problems too."""
    problems = []
    for version in VERSIONS:
        try:
            kubernetes_validate.validate(document, version, strict=True)
        except kubernetes_validate.ValidationError as error:
            problems.append(f"{version}: {error}")
    return problems


def workloads(documents):
    return [one for one in documents if one["kind"] in ("Deployment", "StatefulSet")]


def containers(workload):
    """Returns a workload's containers, those that run beside the others as init containers included."""
    spec = workload["spec"]["template"]["spec"]
    return spec["containers"] + spec.get("initContainers", [])


def selects(selector, workload):
    labels = workload["spec"]["template"]["metadata"]["labels"]
    return all(labels.get(key) == value for key, value in selector.items())


def seconds(duration):
    number, unit = re.fullmatch(r"(\d+)(ms|s|m|h)", duration).groups()
    return int(number) * {"ms": 0.001, "s": 1, "m": 60, "h": 3600}[unit]


def configuration(workload, documents):
    """Returns the text of a workload's configuration and its environment, as they are in a pod with the address 10.0.0.7."""
    volume = next(one for one in workload["spec"]["template"]["spec"]["volumes"] if one["name"] == "config")
    maps = {one["metadata"]["name"]: one["data"] for one in documents if one["kind"] == "ConfigMap"}
    segue = next(one for one in containers(workload) if "--config" in one.get("args", []))
    given = {"status.podIP": "10.0.0.7"}
    environment = {}
    for variable in segue.get("env", []):
        source = variable.get("valueFrom", {})
        path = source.get("fieldRef", {}).get("fieldPath")
        value = variable.get("value", given.get(path, "some"))
        environment[variable["name"]] = re.sub(r"\$\((\w+)\)", lambda name: environment[name[1]], value)
    return maps[volume["configMap"]["name"]]["segue.toml"], environment


def make_secrets(folder):
    """Makes the files that the chart mounts from secrets."""
    store, tls = (os.path.join(folder, "secrets", name) for name in ("segue-store", "segue-store-tls"))
    os.makedirs(store, exist_ok=True)
    os.makedirs(tls, exist_ok=True)
    with open(os.path.join(store, "password"), "w", encoding="utf-8") as out:
        out.write("secret")
    key, cert, ca = (os.path.join(tls, name) for name in ("tls.key", "tls.crt", "ca.crt"))
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
                    "-subj", "/CN=segue", "-keyout", key, "-out", cert], check=True, capture_output=True)
    shutil.copy(cert, ca)


def check_configurations(segue, folder, name, documents):
    """Lets `segue check` read what the processes will read, with the files of one deployment together."""
    make_secrets(folder)
    files, common = [], {}

    def accepted(environment, *paths):
        arguments = [argument for path in paths for argument in ("--config", path)]
        check = subprocess.run([segue, "check", *arguments], capture_output=True, text=True, check=False,
                               env={**os.environ, **environment})
        said = check.stdout + check.stderr
        assert check.returncode == 0 and "warning" not in said, f"{name}: {paths}: {said}"

    for workload in workloads(documents):
        text, environment = configuration(workload, documents)
        segue_container = next(one for one in containers(workload) if "--config" in one.get("args", []))
        mounts = {mount["mountPath"] for mount in segue_container["volumeMounts"]}
        for path in re.findall(r"/run/secrets/[\w-]+", text):
            assert path in mounts, f"{name}: {path} is not mounted"
        path = os.path.join(folder, f"{workload['metadata']['name']}.toml")
        with open(path, "w", encoding="utf-8") as out:
            out.write(text.replace("/run/secrets/", os.path.join(folder, "secrets", "")))
        accepted(environment, path)
        files.append(path)
        common |= {key: value for key, value in environment.items() if key.startswith("SEGUE__STORE__")}
    accepted(common, *files)


def check_relations(name, documents):
    found = workloads(documents)
    for document in documents:
        kind, spec = document["kind"], document.get("spec", {})
        where = f"{name}: {kind} {document['metadata']['name']}"
        selector = {
            "Service": lambda: spec["selector"],
            "PodDisruptionBudget": lambda: spec["selector"]["matchLabels"],
            "NetworkPolicy": lambda: spec["podSelector"]["matchLabels"],
            "PodMonitor": lambda: spec["selector"]["matchLabels"],
            "Deployment": lambda: spec["selector"]["matchLabels"],
            "StatefulSet": lambda: spec["selector"]["matchLabels"],
        }.get(kind, lambda: None)()
        if selector is None or not found:
            continue
        chosen = [one for one in found if selects(selector, one)]
        assert len(chosen) == (len(found) if kind == "PodMonitor" else 1), f"{where} selects {len(chosen)} workloads"
        wanted = {
            "Service": lambda: [port["targetPort"] for port in spec["ports"]],
            "NetworkPolicy": lambda: [port["port"] for rule in spec["ingress"] for port in rule["ports"]],
            "PodMonitor": lambda: [endpoint["port"] for endpoint in spec["podMetricsEndpoints"]],
        }.get(kind, lambda: [])()
        for workload in chosen:
            ports = {port["name"] for container in containers(workload) for port in container.get("ports", [])}
            assert set(wanted) <= ports, f"{where}: {set(wanted) - ports} is no port of {workload['metadata']['name']}"


def check_life(name, workload, documents):
    """Compares the grace period with what a pod of the workload needs to end."""
    where, pod = f"{name}: {workload['metadata']['name']}", workload["spec"]["template"]["spec"]
    text, _ = configuration(workload, documents)
    config = tomllib.loads(text)
    grace, pre_stop = pod["terminationGracePeriodSeconds"], 0
    for container in containers(workload):
        hook = container.get("lifecycle", {}).get("preStop", {})
        pre_stop = max(pre_stop, hook.get("sleep", {}).get("seconds", 0))
        security = container["securityContext"]
        assert security["readOnlyRootFilesystem"] and not security["allowPrivilegeEscalation"], where
        assert security["capabilities"] == {"drop": ["ALL"]} and pod["securityContext"]["runAsNonRoot"], where
    needed = pre_stop
    if "router" in config:
        needed += seconds(config["router"].get("drain", {}).get("timeout", "20s"))
    if "pod" in config:
        needed += seconds(config["pod"].get("shutdown_timeout", "60s"))
        service = [one for one in pod["initContainers"] if one.get("restartPolicy") == "Always"]
        assert service and "lifecycle" not in service[0], f"{where}: the service would end before its sidecar"
        assert [one["name"] for one in pod["containers"]] == ["segue"], where
    assert grace > needed, f"{where}: terminationGracePeriodSeconds is {grace}, and {needed} s are needed"
    segue = next(one for one in containers(workload) if "--config" in one.get("args", []))
    assert segue["readinessProbe"]["httpGet"] == {"path": "/ready", "port": "admin"}, where
    assert segue["livenessProbe"]["httpGet"] == {"path": "/health", "port": "admin"}, where


def check_chart(folder):
    report = helm_python.lint(CHART, strict=True, kube_version="v1.30.0")
    problems = [one for one in report["messages"] if one["severity"] > 1]
    assert not problems and not report["errors"], json.dumps(report, indent=1)
    with helm_python.Chart.load(CHART) as chart:
        # The archive has the dashboard and the alerts, which are links in the folder.
        with helm_python.Chart.load(helm_python.package(CHART, destination=folder)) as packed:
            assert packed.render(VALUES["everything"], name="shop") == chart.render(VALUES["everything"], name="shop")
        for values in REFUSED:
            try:
                chart.validate_schema(values)
            except helm_python.HelmValuesError:
                continue
            raise AssertionError(f"values.schema.json accepts {values}")
