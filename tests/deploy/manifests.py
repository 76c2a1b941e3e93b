"""The manifests of deploy/: rendered by the real kustomize and the real Helm, and compared with Kubernetes' schemas.

There is no Kubernetes here, so nothing is applied. The checks compare what a schema cannot: names, ports, and by `segue check` how
pods end.
"""

import functools
import json
import os
import re
import shutil
import subprocess
import sys

import helm_python
import kubernetes_validate
import yaml

ROOT = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
CHART = os.path.join(ROOT, "deploy/helm/segue")
KUSTOMIZATIONS = ["deploy/kubernetes", "deploy/kubernetes/monitoring", "deploy/kubernetes/writer",
                  "deploy/kubernetes/writer-pre-stop"]
VERSIONS = ["1.30", "1.37"]
# Kinds of the Prometheus Operator: Kubernetes' schemas do not have them.
FOREIGN = {"PodMonitor", "PrometheusRule"}
VALUES = {
    "defaults": {},
    "everything": {
        "keyspace": "42", "service": "orders",
        "image": {"repository": "example.org/segue", "tag": "1"},
        "imagePullSecrets": [{"name": "pull"}],
        "store": {"endpoints": ["https://a:2379", "https://b:2379"], "credentialsSecret": "etcd", "tlsSecret": "etcd-tls"},
        "admin": {"write": "token", "tokenSecret": "operators", "tlsSecret": "admin-tls"},
        "router": {
            "tls": {"secret": "router-tls", "clientCertificates": True},
            "service": {"type": "LoadBalancer", "port": 8080, "annotations": {"a": "b"}},
            "autoscaling": {"enabled": True}, "podAnnotations": {"a": "1"}, "nodeSelector": {"disk": "ssd"},
            "tolerations": [{"key": "only", "operator": "Exists"}],
            "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "In", "values": ["b"]}]}]}}},
        },
        "coordinator": {
            "podAnnotations": {"a": "1"}, "replicas": 3,
            "config": '[coordinator]\nlisten = "0.0.0.0:7070"\ntoken_file = "/run/secrets/pods/token"\n'
                      'tls = { cert = "/run/secrets/pods/tls.crt", key = "/run/secrets/pods/tls.key" }\n',
            "extraVolumes": [{"name": "pods", "secret": {"secretName": "pods", "defaultMode": 0o440}}],
            "extraVolumeMounts": [{"name": "pods", "mountPath": "/run/secrets/pods", "readOnly": True}],
        },
        "monitoring": {"podMonitor": True, "rules": True, "dashboard": True, "labels": {"release": "prometheus"},
                       "tlsConfig": {"ca": {"secret": {"name": "admin-tls", "key": "ca.crt"}}, "serverName": "segue-admin"}},
    },
    "a token of the chart": {"admin": {"write": "token", "token": "0123456789abcdef"}},
    "operators' certificates": {"admin": {"write": "client_cert", "tlsSecret": "admin-tls"}, "router": {"tls": {"secret": "router-tls"}}},
    "its own etcd": {"etcd": {"enabled": True, "storageClass": "fast"}},
    "least": {"networkPolicy": {"enabled": False}, "podDisruptionBudget": {"enabled": False}, "router": {"preStopSeconds": 0}},
}
# Without budgets, and without time for nodes to learn that a router ends.
WARNED = {"helm: least"}
REFUSED = [
    {"routers": {}}, {"router": {"replica": 2}}, {"router": {"replicas": 0}}, {"store": {"endpoints": []}},
    {"store": {"endpoints": ["etcd:2379"]}}, {"keyspace": "a b"}, {"service": "a b"}, {"image": {"pullPolicy": "always"}},
    {"router": {"service": {"port": 70000}}}, {"monitoring": {"rules": "yes"}}, {"etcd": {"replicas": 2}},
    {"admin": {"write": "all"}}, {"admin": {"write": "token"}}, {"admin": {"write": "token", "token": "short"}},
    {"admin": {"write": "client_cert"}}, {"router": {"tls": {"clientCertificates": True}}}, {"router": {"extraVolumes": [{}]}},
]


def kustomized(folder):
    """Returns the documents of a kustomization."""
    command = [os.path.join(os.path.dirname(sys.executable), "kubectl"), "kustomize", os.path.join(ROOT, folder)]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return [document for document in yaml.safe_load_all(output) if document]


def charted(*sets):
    """Returns the documents of the chart for each set of values."""
    found = []
    with helm_python.Chart.load(CHART) as chart:
        for values in sets:
            files = chart.render(values, name="shop", namespace="shop")
            texts = [text for path, text in files.items() if not path.endswith("NOTES.txt")]
            found.append([one for text in texts for one in yaml.safe_load_all(text) if one])
    return found


@functools.cache
def rendered():
    """Returns the documents of each kustomization and each set of values."""
    sets = {folder: kustomized(folder) for folder in KUSTOMIZATIONS}
    # A writer without routers would be incomplete to what compares them.
    sets["deploy/kubernetes and writer"] = sum((sets[folder] for folder in KUSTOMIZATIONS[:3]), [])
    return sets | dict(zip((f"helm: {name}" for name in VALUES), charted(*VALUES.values())))


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


def segues(documents):
    """Returns the workloads that run Segue: the chart's etcd does not."""
    return [one for one in workloads(documents) if any("--config" in container.get("args", []) for container in containers(one))]


def containers(workload):
    """Returns a workload's containers, those that run beside the others as init containers included."""
    spec = workload["spec"]["template"]["spec"]
    return spec["containers"] + spec.get("initContainers", [])


def segue_of(workload):
    """Returns the container that runs Segue."""
    return next(one for one in containers(workload) if "--config" in one.get("args", []))


def selects(selector, workload):
    labels = workload["spec"]["template"]["metadata"]["labels"]
    return all(labels.get(key) == value for key, value in selector.items())


def configuration(workload, documents):
    """Returns the text of a workload's configuration and its environment, as they are in a pod with the address 10.0.0.7."""
    volume = next(one for one in workload["spec"]["template"]["spec"]["volumes"] if one["name"] == "config")
    maps = {one["metadata"]["name"]: one["data"] for one in documents if one["kind"] == "ConfigMap"}
    given = {"status.podIP": "10.0.0.7"}
    environment = {}
    for variable in segue_of(workload).get("env", []):
        source = variable.get("valueFrom", {})
        path = source.get("fieldRef", {}).get("fieldPath")
        value = variable.get("value", given.get(path, "some"))
        environment[variable["name"]] = re.sub(r"\$\((\w+)\)", lambda name: environment[name[1]], value)
    return maps[volume["configMap"]["name"]]["segue.toml"], environment


# Where secrets are mounted.
SECRETS = "/run/secrets/"
# The keys of a secret, by where it is mounted; the others have TLS_KEYS.
KEYS = {"segue-store": ["password"], "segue-admin-token": ["token"], "pods": ["token", "tls.crt", "tls.key"]}
TLS_KEYS = ["tls.crt", "tls.key", "ca.crt"]


def make_secrets(folder, workload):
    """Makes the files that a workload mounts from secrets. Returns the folder that stands for SECRETS, and the files' paths there."""
    into, made = os.path.join(folder, "secrets"), set()
    os.makedirs(into, exist_ok=True)
    key, cert = (os.path.join(into, name) for name in ("key", "cert"))
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
                    "-subj", "/CN=segue", "-keyout", key, "-out", cert], check=True, capture_output=True)
    for mount in segue_of(workload)["volumeMounts"]:
        if mount["mountPath"].startswith(SECRETS):
            name = mount["mountPath"].removeprefix(SECRETS)
            os.makedirs(os.path.join(into, name), exist_ok=True)
            for file in KEYS.get(name, TLS_KEYS):
                path = os.path.join(into, name, file)
                made.add(f"{mount['mountPath']}/{file}")
                if file.startswith(("tls.", "ca.")):
                    shutil.copy(key if file == "tls.key" else cert, path)
                else:
                    with open(path, "w", encoding="utf-8") as out:
                        out.write("a-secret-of-some-length")
    return os.path.join(into, ""), made


def check_configurations(segue, folder, name, documents):
    """Lets `segue check` read what the processes will read, with the files of one deployment together."""
    files, common = [], {}

    def accepted(environment, *paths):
        arguments = [argument for path in paths for argument in ("--config", path)]
        check = subprocess.run([segue, "check", *arguments], capture_output=True, text=True, check=False,
                               env={**os.environ, **environment})
        # A volume of the container is no folder of this machine.
        said = "\n".join(line for line in (check.stdout + check.stderr).splitlines() if "cannot be used here" not in line)
        assert check.returncode == 0 and "warning" not in said, f"{name}: {paths}: {said}"

    made = {document["metadata"]["name"] for document in documents if document["kind"] == "Secret"}
    for workload in segues(documents):
        volumes = {volume["name"]: volume for volume in workload["spec"]["template"]["spec"]["volumes"]}
        mounted = {mount["name"] for container in containers(workload) for mount in container.get("volumeMounts", [])}
        assert mounted == set(volumes), f"{name}: mounts and volumes differ by {mounted ^ set(volumes)}"
        named = {volume["secret"]["secretName"] for volume in volumes.values() if "secret" in volume}
        assert made <= named, f"{name}: the secrets {made - named} are not mounted"
        text, environment = configuration(workload, documents)
        secrets, files_there = make_secrets(folder, workload)
        # `segue check` does not read files of tokens.
        for path in re.findall(f"{SECRETS}[\\w./-]+", "\n".join([text, *environment.values()])):
            assert path in files_there, f"{name}: {path} is not mounted"
        environment = {key: value.replace(SECRETS, secrets) for key, value in environment.items()}
        path = os.path.join(folder, f"{workload['metadata']['name']}.toml")
        with open(path, "w", encoding="utf-8") as out:
            out.write(text.replace(SECRETS, secrets))
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
        assert len(chosen) == (len(segues(documents)) if kind == "PodMonitor" else 1), f"{where} selects {len(chosen)} workloads"
        wanted = {
            "Service": lambda: [port["targetPort"] for port in spec["ports"]],
            "NetworkPolicy": lambda: [port["port"] for rule in spec["ingress"] for port in rule["ports"]],
            "PodMonitor": lambda: [endpoint["port"] for endpoint in spec["podMetricsEndpoints"]],
        }.get(kind, lambda: [])()
        for workload in chosen:
            ports = {port["name"] for container in containers(workload) for port in container.get("ports", [])}
            assert set(wanted) <= ports, f"{where}: {set(wanted) - ports} is no port of {workload['metadata']['name']}"


def check_security(name, workload):
    pod = workload["spec"]["template"]["spec"]
    for container in containers(workload):
        where, security = f"{name}: {workload['metadata']['name']}: {container['name']}", container["securityContext"]
        assert security["readOnlyRootFilesystem"] and not security["allowPrivilegeEscalation"], where
        assert security["capabilities"] == {"drop": ["ALL"]} and pod["securityContext"]["runAsNonRoot"], where


def check_life(segue, folder, name, documents):
    """Lets `segue check` compare grace periods, hooks, probes and budgets with the configurations in the ConfigMaps."""
    path = os.path.join(folder, "manifests.yaml")
    with open(path, "w", encoding="utf-8") as out:
        yaml.safe_dump_all(documents, out)
    check = subprocess.run([segue, "check", "--kubernetes", path], capture_output=True, text=True, check=False)
    assert check.returncode == 0, f"{name}: {check.stderr}"
    assert ("warning" in check.stderr) == (name in WARNED), f"{name}: {check.stderr}"


def check_chart(folder):
    report = helm_python.lint(CHART, strict=True, kube_version="v1.30.0")
    problems = [one for one in report["messages"] if one["severity"] > 1]
    assert not problems and not report["errors"], json.dumps(report, indent=1)
    with helm_python.Chart.load(CHART) as chart:
        # The archive has the dashboard and the alerts, which are links in the folder.
        with helm_python.Chart.load(helm_python.package(CHART, destination=folder)) as packed:
            assert packed.render(VALUES["everything"], name="shop") == chart.render(VALUES["everything"], name="shop")
        for name, keyspace, service in (("defaults", "shop", False), ("everything", "42", True)):
            documents = rendered()[f"helm: {name}"]
            for text in (configuration(workload, documents)[0] for workload in segues(documents)):
                lines = text.splitlines()
                assert f'keyspace = "{keyspace}"' in lines and ('service = "orders"' in lines) == service, f"{name}: {text}"
        for values in REFUSED:
            try:
                chart.validate_schema(values)
            except helm_python.HelmValuesError:
                continue
            raise AssertionError(f"values.schema.json accepts {values}")


# A chart that has Segue's as a dependency, with a writer behind the sidecar.
WRITER_CHART = {
    "Chart.yaml": """apiVersion: v2
name: writers
version: 0.1.0
dependencies:
  - {name: segue, version: 0.1.0}
""",
    "templates/writer.yaml": """containers:
  - {{ include "segue.sidecar" (dict "image" "segue" "volume" "config") | nindent 4 }}
""",
}


def check_sidecar(folder):
    """Includes the chart's sidecar in another chart, and compares it with the one of deploy/kubernetes/writer."""
    chart = os.path.join(folder, "writers")
    for name, text in WRITER_CHART.items():
        path = os.path.join(chart, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as out:
            out.write(text)
    shutil.copytree(CHART, os.path.join(chart, "charts/segue"))
    with helm_python.Chart.load(chart) as loaded:
        [text] = [text for path, text in loaded.render({}, name="shop", namespace="shop").items() if "segue/" not in path]
    with open(os.path.join(ROOT, "deploy/kubernetes/writer/writer.yaml"), encoding="utf-8") as file:
        [writer] = workloads([one for one in yaml.safe_load_all(file) if one])
    [expected] = writer["spec"]["template"]["spec"]["containers"]
    [rendered_one] = yaml.safe_load(text)["containers"]
    assert rendered_one == expected, rendered_one


def chart_etcd():
    """Returns the StatefulSet of the chart's etcd."""
    [documents] = charted(VALUES["its own etcd"])
    [etcd] = [one for one in workloads(documents) if one not in segues(documents)]
    return etcd


def etcd_probes():
    """Returns the paths of the readiness and the liveness probe of the chart's etcd, both on its port for metrics."""
    [container] = containers(chart_etcd())
    probes = [container[probe]["httpGet"] for probe in ("readinessProbe", "livenessProbe")]
    assert all(probe["port"] == "metrics" for probe in probes), probes
    return [probe["path"] for probe in probes]


def etcd_commands(folder, ports):
    """Returns the commands of the chart's etcd. `ports`: for each member those that stand for 2379, 2380 and 2381 on this host."""
    etcd = chart_etcd()
    [container], name = containers(etcd), etcd["metadata"]["name"]
    commands = []
    for member, own in enumerate(ports):
        def here(text, member=member, own=own):
            text = text.replace("$(POD_NAME)", f"{name}-{member}").replace("/var/lib/etcd", os.path.join(folder, f"etcd-{member}"))
            for number, others in enumerate(ports):
                for port, other in zip((2379, 2380), others):
                    text = text.replace(f"{name}-{number}.{name}.shop.svc:{port}", f"127.0.0.1:{other}")
            for port, other in zip((2379, 2380, 2381), own):
                text = text.replace(f"0.0.0.0:{port}", f"127.0.0.1:{other}")
            return text

        commands.append([*container["command"], *map(here, container["args"])])
    return commands
