"""The incidents. Each begins, says what has to name its culprit where, and ends with the command that an operator would use.

A surface is what an operator looks at: `status`, `explain` (the incident says of what), `top`, `check` (`segue check --store`),
`page` (its headline and what stands below it), `log` (of any process, at `warn` and `error`), `ready`, `metric`, `alert`, and
`pending`: an alert that only has to last. What is left out here cannot know of the incident, or is no incident there. A pattern may come with the seconds that
are allowed, if they are others than usual.
"""

import contextlib
import glob
import signal

from harness.certificates import let_expire
from harness.waiting import until
from site_of_incidents import stopped_by_signal


@contextlib.contextmanager
def a_pod_is_killed(site):
    """The lease of its sidecar lives for up to 15 s more."""
    site.processes["writer-1"].kill()
    try:
        yield {
            "status": r"trouble +writer-1: unreachable from 2 of 2 routers",
            "explain writer-1": r"trouble +writer-1: unreachable",
            "page": r"writer-1: unreachable",
            "log": r"router-\d: .*clients of a pod suffer.*writer-1",
            "metric": r'segue_pod_trouble\{.*pod="writer-1".*\} 1',
            "alert": r"SeguePodInTrouble .*pod=writer-1",
        }
        site.operate("forget", "pod", "writer-1", "--force", "--yes")
    finally:
        site.begin("writer-1")


@contextlib.contextmanager
def a_pod_is_slow(site):
    """Each of its requests takes 3 s."""
    site.have("writer-2", slow=3)
    try:
        yield {
            "status": r"trouble +writer-2: ",
            "explain writer-2": r"trouble +writer-2: ",
            "page": r"writer-2: ",
            "log": r"router-\d: .*clients of a pod suffer.*writer-2",
            "metric": r'segue_pod_trouble\{.*pod="writer-2".*\} 1',
            "top": r"writer-2",
            "alert": r"SeguePodInTrouble .*pod=writer-2",
        }
        site.operate("drain", "writer-2")
        until(lambda: "owns        0" in site.says("explain", "writer-2"), "a drained pod")
    finally:
        site.have("writer-2", slow=0)
        site.operate("undrain", "writer-2")


@contextlib.contextmanager
def a_pod_hangs_while_it_warms(site):
    """A planned move waits for it for ever."""
    partition = next(one for one in range(64) if site.owner(one) != "writer-0")
    site.have("writer-0", warm="hangs")
    site.operate("move", str(partition), "--to", "writer-0", "--no-wait")
    try:
        yield {
            "status": r"writer-0 to warm",
            f"explain {partition}": r"writer-0",
            "explain writer-0": r"warm",
            "page": r"writer-0",
            "metric": r'segue_handoff_waits\{.*kind="pod",for="writer-0"\} 1',
            "pending": r"SegueHandoffWaitsForPod .*for=writer-0",
        }
        site.operate("cancel", str(partition))
    finally:
        site.have("writer-0", warm="works")


@contextlib.contextmanager
def a_key_is_hot(site):
    """Clients ask for one key at full speed."""
    load = site.clients("hot-clients", 8, 1000, "=4711")
    try:
        yield {"top": r"\b4711\b", "explain --key 4711": r"partition"}
    finally:
        load.kill()


@contextlib.contextmanager
def the_store_stops(site):
    with stopped_by_signal(site.etcd.process.process, signal.SIGSTOP, signal.SIGCONT):
        yield {
            "page": r"the store",
            "log": r"the store (is unavailable|has not answered)",
            "ready": r"the store",
            "metric": r"segue_store_up(\{.*\})? 0",
            "alert": r"SegueStoreDown",
        }


@contextlib.contextmanager
def the_store_is_full(site):
    site.etcd.alarm("ACTIVATE", "NOSPACE")
    try:
        yield {
            "status": r"store +refuses writes",
            "page": r"refuses writes",
            # The leader writes, or tries to, every 20 s.
            "log": (r"the store refuses writes", 25),
            "metric": r"segue_store_refuses_writes(\{.*\})? 1",
            "alert": r"SegueStoreRefusesWrites",
        }
    finally:
        site.etcd.alarm("DEACTIVATE", "NOSPACE")


@contextlib.contextmanager
def a_clock_is_wrong(site):
    """A router's is ten minutes behind."""
    site.end("router-1")
    # As `faketime` does, without a process of its own that would stay between.
    library = glob.glob("/usr/lib/*/faketime/libfaketime.so.1")[0]
    site.begin("router-1", "env", f"LD_PRELOAD={library}", "FAKETIME=-600s", "DONT_FAKE_MONOTONIC=1")
    try:
        yield {
            "status": r"router-1.*clock",
            "page": r"router-1.*clock",
            "log": r"clock.*router-1|router-1: .*clock",
            "metric": r'segue_clock_offset_seconds\{.*router-1.*\} -?(599|60\d)',
            "alert": r"SegueClockOff.*router-1",
        }
    finally:
        site.end("router-1")
        site.begin("router-1")


@contextlib.contextmanager
def a_router_maps_keys_in_another_way(site):
    site.end("router-1")
    partition = site.sections["router-1"]["router"]["partition"]
    site.begin("router-1", partition=partition | {"hash": "crc32"})
    try:
        yield {
            "check": r"hash",
            "log": r"router-1: .*maps requests to partitions in another way",
            "ready": r"router-1: .*(map|partition)",
            "metric": r"segue_mapping_differs.* 1",
            "alert": r"SegueMappingDiffers.*router-1",
        }
    finally:
        site.end("router-1")
        site.begin("router-1")


@contextlib.contextmanager
def a_certificate_expires(site):
    tls = {"cert": site.cert, "key": site.key}
    site.end("router-1")
    site.begin("router-1", tls=tls)
    until(lambda: "router-1: ready" in site.ready() and "router-1" in site.says("status"), "a router with TLS")
    let_expire(site.cert, site.key)
    try:
        yield {
            "log": r"router-1: .*certificate",
            "metric": r"segue_certificate_not_after_seconds\{.*\} \d+",
            "alert": r"SegueCertificateExpires .*router-1",
        }
    finally:
        site.end("router-1")
        site.begin("router-1")


@contextlib.contextmanager
def a_pause_is_forgotten(site):
    site.operate("pause", "--for", "48h", "--why", "incident 4711")
    try:
        yield {
            "status": r"paused.*incident 4711",
            "page": r"paused.*incident 4711",
            "metric": r"segue_planner_paused(\{.*\})? 1",
            "pending": r"SegueInterventionForgotten",
        }
    finally:
        site.operate("resume")


@contextlib.contextmanager
def a_bad_deploy(site):
    """The new build of a pod cannot warm anything."""
    site.end("writer-2")
    site.begin("writer-2", exec=site.service("writer-2", "warm=fails"))
    # It is one once the pod has registered and is to have partitions.
    until(lambda: "→ writer-2" in site.says("status"), "moves to the new build")
    try:
        yield {
            "status": r"writer-2",
            "explain writer-2": r"disk full",
            "page": r"writer-2",
            "log": r"writer-2: .*warm.*disk full",
            "metric": r'segue_pod_hook_seconds_count\{.*hook="warm".*result="failed".*\} [1-9]',
            "alert": r"SeguePodHookFails .*writer-2",
        }
    finally:
        site.end("writer-2")
        site.begin("writer-2")


# In an order in which no alert that still fires hides another one.
INCIDENTS = [
    a_key_is_hot,
    a_pause_is_forgotten,
    a_pod_is_killed,
    a_pod_is_slow,
    a_pod_hangs_while_it_warms,
    a_router_maps_keys_in_another_way,
    a_clock_is_wrong,
    a_certificate_expires,
    a_bad_deploy,
    the_store_is_full,
    the_store_stops,
]
