"""Runs `segue conformance`: with each pod of the site, and with `--handoffs` with a pod of each example, in a keyspace of its own.
Several run at the same time."""

import asyncio
import os
import shlex

from harness.ports import free_port
from harness.segue import at

PATIENCE = 20
# The lease of a pod, in seconds. Several programs play while the whole site runs, and none of them may starve it for so long.
LEASE = 10


PATH = ["--path", "/keys/conformance"]


async def answer(site, pods):
    """Sends requests with right and wrong stamps to each pod while the site is settled. Returns how many conform, and prints what
    is wrong with the others."""
    command = [site.program, "conformance", *PATH, "--etcd", site.etcd.url]
    results = []
    for pod in pods:
        # A lease of some seconds may end while a busy machine runs the test of another pod.
        await site.settled()
        results.append(await tested([*command, "--pod", f"http://{pod.listen}", "--name", pod.name]))
    for pod, (code, said) in zip(pods, results):
        if code:
            print(f"  {pod.name} does not conform in what it answers:\n{said}")
    return sum(not code for code, _ in results)


async def tested(command):
    """Returns the exit code of the test, and what it says."""
    test = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT)
    said, _ = await test.communicate()
    return test.returncode, said.decode()


async def conform(site, pods):
    """Plays with each pod. Returns how many conform, and prints what is wrong with the others."""
    results = await asyncio.gather(*(play(site, pod) for pod in pods))
    for pod, (code, said) in zip(pods, results):
        if code:
            print(f"  {pod.name} does not conform in handoffs:\n{said}")
    return sum(not code for code, _ in results)


async def play(site, pod):
    name, keyspace = f"conform-{pod.name}", f"conform-{pod.name}"
    listen, service = at(free_port()), at(free_port())
    command = [site.program, "conformance", "--handoffs", "--pod", f"http://{listen}", *PATH]
    command += ["--name", name, "--etcd", site.etcd.url, "--keyspace", keyspace, "--patience", f"{PATIENCE}s"]
    if pod.is_by_grpc:
        command += ["--listen", service]
    if pod.needs_token:
        command += ["--token-file", site.token]
    folder = os.path.join(site.folder, keyspace)
    os.mkdir(folder)
    # The program starts the pod, kills it and starts it again.
    return await tested([*command, "--command", f"exec {shlex.join(pod.alone(service, keyspace, name, listen, folder, LEASE))}"])
