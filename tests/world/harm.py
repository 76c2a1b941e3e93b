"""What went wrong, and which of it a kill excuses.

A request that fails is harm, unless it was at a pod that was killed with SIGKILL meanwhile. It counts as such if its
partition was that pod's, or was moving to or from it, if it was sent before the kill or within two seconds after it,
and if it failed as a broken exchange does: by 502, 500 `lease-lost`, a reset, or a stream that was cut.
"""

import dataclasses
import time

# Within this time after a kill a request may still be sent on a connection whose end nobody has noticed.
NOTICED = 2.0
# The key of requests that have none, which any pod may have got.
ANY = "any"
# How many are printed, and how long a description may be. A service that keeps nothing does harm with each request.
SHOWN, LONGEST = 30, 1000


@dataclasses.dataclass
class Kill:
    service: str
    pod: str
    at: float
    partitions: frozenset


@dataclasses.dataclass
class Failure:
    service: str
    key: str
    began: float
    ended: float
    what: str
    is_broken: bool


def says_broken(status, text):
    """Returns whether a response says that the exchange with the pod ended before the pod's response. A sidecar whose
    service was killed answers 500 `lease-lost` (docs/reference/http.md)."""
    return status == 502 or (status == 500 and "lease-lost" in text)


class Harm:
    def __init__(self):
        self.began = time.time()
        self.found, self.failures, self.kills = [], [], []

    def add(self, service, what, at=None):
        at = (at or time.time()) - self.began
        self.found.append(f"{service}: {what[:LONGEST]} (at {at:.1f} s)")
        if len(self.found) <= SHOWN:
            print(f"  HARM {self.found[-1]}", flush=True)

    def show(self):
        for one in self.found[:SHOWN]:
            print(f"  harm: {one}")
        if len(self.found) > SHOWN:
            print(f"  harm: … and {len(self.found) - SHOWN} more")

    def failed(self, service, key, began, what, is_broken):
        """Notes a request that failed. `is_broken`: it failed as an exchange does whose pod dies."""
        self.failures.append(Failure(service, key, began, time.time(), what, is_broken))

    def killed(self, service, pod, partitions):
        self.kills.append(Kill(service, pod, time.time(), frozenset(partitions)))

    def judge(self, service, partitions):
        """Adds the failures that no kill excuses. `partitions` maps keys to theirs. Returns how many are excused."""
        kills = [kill for kill in self.kills if kill.service == service]
        excused = 0
        for failure in self.failures:
            if failure.service != service:
                continue
            if failure.is_broken and any(self.excuses(kill, failure, partitions.get(failure.key)) for kill in kills):
                excused += 1
            else:
                waited = failure.ended - failure.began
                self.add(service, f"{failure.key}: failed after {waited:.1f} s: {failure.what}", failure.ended)
        return excused

    @staticmethod
    def excuses(kill, failure, partition):
        is_of_pod = partition in kill.partitions or failure.key == ANY
        return is_of_pod and failure.began - NOTICED <= kill.at <= failure.ended
