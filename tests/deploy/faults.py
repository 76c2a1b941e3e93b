"""Faults for the site. Each sets off the alerts that it names, and is repaired afterwards."""

import contextlib
import glob
import http.client
import os
import resource
import signal
import socket
import threading

from harness.segue import at
from harness.waiting import until
from harness.web import metrics, read_json, status_of

SLOW = 20


def router_partitions(port):
    return read_json(f"http://{at(port)}/status")["router"]["partitions"]


@contextlib.contextmanager
def nothing_at_all(_site):
    """The certificate of the site expires in five days."""
    yield


@contextlib.contextmanager
def a_forgotten_pause(site):
    paused = site.operate("pause", "--why", "an incident")
    assert paused.returncode == 0, paused.stderr
    try:
        yield
    finally:
        site.operate("resume")


@contextlib.contextmanager
def clients_that_speak_no_tls(site):
    for _ in range(20):
        with socket.create_connection(("127.0.0.1", site.secure)) as client, contextlib.suppress(OSError):
            client.sendall(b"GET / HTTP/1.1\r\n\r\n")
            while client.recv(1024):
                pass
    yield


@contextlib.contextmanager
def a_clock_that_is_wrong(site):
    """As `faketime` does, without a process of its own that would stay between."""
    library = glob.glob("/usr/lib/*/faketime/libfaketime.so.1")[0]
    site.end_process("router")
    site.begin("router", "env", f"LD_PRELOAD={library}", "FAKETIME=-600s", "DONT_FAKE_MONOTONIC=1")
    try:
        yield
    finally:
        site.end_process("router")
        site.begin("router")


@contextlib.contextmanager
def a_router_that_maps_keys_in_another_way(site):
    site.end_process("router")
    path = site.configs["router"]
    with open(path, encoding="utf-8") as file:
        text = file.read()
    with open(path, "w", encoding="utf-8") as file:
        file.write(text.replace('"header" = "x-partition"', '"key" = { "header" = "x-key" }'))
    site.begin("router")
    try:
        yield
    finally:
        site.end_process("router")
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        site.begin("router")


@contextlib.contextmanager
def a_service_that_breaks_responses_off(site):
    with contextlib.suppress(http.client.HTTPException, OSError):
        site.post(1, "/broken")
    yield


@contextlib.contextmanager
def a_service_that_fails(site):
    for service in site.services.values():
        service.fails = True
    try:
        yield
    finally:
        for service in site.services.values():
            service.fails = False


@contextlib.contextmanager
def a_client_that_bypasses_the_routers(site):
    status = status_of(f"http://{site.pods['a']}/")
    assert status == 421, f"the pod answered {status}"
    yield


@contextlib.contextmanager
def a_pod_that_cannot_take_a_partition(site):
    pod = site.other_owner(0)
    site.services[pod].refuses = True
    try:
        site.move(0, pod, "told to")
        yield
    finally:
        site.services[pod].refuses = False


@contextlib.contextmanager
def a_coordinator_of_another_keyspace(site):
    """Its target has the label of this keyspace, as if somebody had left the label out."""
    stranger = site.stranger()
    try:
        yield
    finally:
        stranger.kill()


@contextlib.contextmanager
def a_pod_that_never_gets_warm(site):
    pod = site.other_owner(3)
    site.services[pod].warms_for_ever = True
    try:
        site.move(3, pod)
        yield
    finally:
        site.services[pod].warms_for_ever = False


@contextlib.contextmanager
def requests_that_outlast_the_drain(site):
    """As many as are more than the one in a thousand that the alert allows, however long the load has been running."""
    slow = [threading.Thread(target=lambda: site.post(1, "/slow"), daemon=True) for _ in range(SLOW)]
    for one in slow:
        one.start()
    port = site.ports["router"]

    def are_under_way():
        return any(one["partition"] == 1 and one["in_flight"] >= SLOW for one in router_partitions(port))

    until(are_under_way, "slow requests")
    site.move(1, site.other_owner(1))
    yield
    for one in slow:
        one.join()


@contextlib.contextmanager
def a_router_that_hangs(site):
    site.signal("router-tls", signal.SIGSTOP)
    try:
        site.move(2, site.other_owner(2))
        yield
    finally:
        site.signal("router-tls", signal.SIGCONT)


@contextlib.contextmanager
def a_key_that_cannot_be_read(site):
    keys = [f"/segue/site/{key}" for key in ("assignments/7x", "routers/broken")]
    try:
        site.etcd.put(dict.fromkeys(keys, "no JSON"))
        yield
    finally:
        for key in keys:
            site.etcd.delete(key)


@contextlib.contextmanager
def pods_that_are_killed(site):
    for name in site.services:
        site.signal(name, signal.SIGKILL)
    try:
        yield
    finally:
        for name in site.services:
            site.begin(name)


@contextlib.contextmanager
def no_files_left(site):
    """The limit falls below what is open, so that connections which end make no room."""
    pid = site.pid("router")
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (len(os.listdir(f"/proc/{pid}/fd")) // 2, before[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)


@contextlib.contextmanager
def no_coordinator(site):
    site.end_process("coordinator")
    try:
        yield
    finally:
        site.begin("coordinator")


@contextlib.contextmanager
def a_slow_store(site):
    """etcd runs for a tenth of the time, while partitions move on and on: the alert is about one write in a hundred."""
    etcd, over = site.etcd.process.process, threading.Event()

    def stutter():
        while not over.wait(0.05):
            etcd.send_signal(signal.SIGSTOP)
            over.wait(0.45)
            etcd.send_signal(signal.SIGCONT)

    def move():
        while not over.is_set():
            for pod in site.pods:
                for partition in range(3):
                    site.move(partition, pod)

    threads = [threading.Thread(target=target, daemon=True) for target in (stutter, move)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()


@contextlib.contextmanager
def no_store(site):
    """A second process of the router, too, which cannot register and is killed."""
    site.etcd.process.kill()
    try:
        successor = site.start("router-tls", site.configs["router-tls"])
        until(lambda: successor.has_said("taking over from the running process"), "a hot restart")
        successor.kill()
        yield
    finally:
        site.etcd.start()


@contextlib.contextmanager
def a_full_store(site):
    site.etcd.alarm("ACTIVATE", "NOSPACE")
    try:
        yield
    finally:
        site.etcd.alarm("DEACTIVATE", "NOSPACE")


@contextlib.contextmanager
def a_store_that_fails_again_and_again(site):
    """More than ten times in the ten minutes of the alert."""
    def resyncs():
        return metrics(f"http://{at(site.ports['router'])}/metrics", "segue_store_resyncs_total{")

    def follows():
        # What the process shows of the keyspace is what its router gets from the store.
        return read_json(f"http://{at(site.ports['router'])}/status")["keyspace"]["stale"] is None

    for _ in range(12):
        before = resyncs()
        site.etcd.process.kill()
        until(lambda: resyncs() > before, "a lost watch")  # noqa: B023
        site.etcd.start()
        until(follows, "a router that follows the store again")
    yield


# In an order in which none hides another.
FAULTS = [
    (nothing_at_all, {"SegueCertificateExpires"}),
    (a_forgotten_pause, {"SegueInterventionForgotten"}),
    (clients_that_speak_no_tls, {"SegueHandshakesFail"}),
    (a_clock_that_is_wrong, {"SegueClockOff"}),
    (a_router_that_maps_keys_in_another_way, {"SegueMappingDiffers"}),
    (a_service_that_breaks_responses_off, {"SegueResponsesCutOff"}),
    (a_service_that_fails, {"SegueServerErrors"}),
    (a_client_that_bypasses_the_routers, {"SeguePodBypassed"}),
    (a_pod_that_cannot_take_a_partition, {"SeguePodHookFails", "SegueHandoffsCancelled"}),
    (a_coordinator_of_another_keyspace, {"SegueTwoLeaders"}),
    (a_pod_that_never_gets_warm, {"SegueHandoffOld", "SegueHandoffWaitsForPod"}),
    (requests_that_outlast_the_drain, {"SeguePauseLong", "SegueExchangesSevered", "SegueRequestsRefused"}),
    (a_router_that_hangs, {"SegueHandoffWaits", "SegueRequestsHeld"}),
    (a_key_that_cannot_be_read, {"SegueUnusableKeys"}),
    (pods_that_are_killed, {"SeguePartitionsUnowned", "SeguePodInTrouble"}),
    (no_files_left, {"SegueFilesShort"}),
    (no_coordinator, {"SegueNoLeader"}),
    (a_slow_store, {"SegueStoreSlow"}),
    (a_full_store, {"SegueStoreRefusesWrites"}),
    (no_store, {"SegueStoreDown", "SegueStoreUnreachable", "SegueLeaseNotTrusted", "SegueHotRestartFailed"}),
    (a_store_that_fails_again_and_again, {"SegueStoreResyncs"}),
]

# What is told of a fault. More alerts fire, and inhibit-rules.yaml keeps them from being told.
TOLD_ALONE = {a_full_store: {"SegueStoreRefusesWrites"}, no_store: {"SegueStoreDown", "SegueHotRestartFailed"}}

# Thresholds that a fault would reach only after minutes, each with the one that the rule has here.
SHORTER = {"SegueHandoffOld": ("> 600", "> 10")}

# What a live site cannot be brought to within seconds. rules.test.yaml tests these alerts, and those with a threshold.
BY_RULE_TEST = {"SegueVersionsMixed", "SegueStoreFillsUp", "SegueStoreWentBack"}
