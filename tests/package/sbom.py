"""Validates a bill of materials by the strict schema of CycloneDX, and checks that it is whole."""

import json
import sys

from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

with open(sys.argv[1], encoding="utf-8") as file:
    text = file.read()
problem = JsonStrictValidator(SchemaVersion.V1_5).validate_str(text)
assert problem is None, problem
bill = json.loads(text)
names = {component["name"] for component in bill["components"]}
assert {"tokio", "rustls", "etcd-client", "segue-proxy"} <= names, names
assert not {"criterion", "segue-tests"} & names, "what only tests need is no part of the binary"
described = {component["bom-ref"] for component in bill["components"]} | {bill["metadata"]["component"]["bom-ref"]}
assert {one["ref"] for one in bill["dependencies"]} == described
assert all(set(one["dependsOn"]) <= described for one in bill["dependencies"])
unlicensed = [component["name"] for component in bill["components"] if "licenses" not in component]
assert not unlicensed, unlicensed
print(len(names))
