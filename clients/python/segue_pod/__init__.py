"""The library with which a service in Python takes part in Segue: it owns partitions, and takes and gives them up without losing a
request.

For: registering a pod at the coordinators or at a sidecar's stream, preparing and releasing the state of partitions, and admitting
only requests of partitions that the pod owns. Not for: services that a sidecar represents by HTTP hooks, which need no library.

* `Membership` registers the pod and calls the service's callbacks (`Callbacks`) when a partition comes or goes.
* Its `asgi` and `admit` admit requests. An admitted request has an `Owned`: its partition, its epoch, and whether it may still write.
  Every other one gets 421, and the router sends it again.
* Its `take_part` registers the pod, and hands all partitions over before the process ends.
* `partition_of` tells the partition of a key, as routers compute it.
* `Participant` and `Ownership` are the parts that need no coordinator, for those who take part otherwise.
"""

from .callbacks import Callbacks, HandoffContext, PermanentFailure
from .membership import Membership
from .ownership import Owned, Ownership, lease_now
from .participant import Participant
from .partitions import partition_of

__all__ = [
    "Callbacks",
    "HandoffContext",
    "Membership",
    "Owned",
    "Ownership",
    "Participant",
    "PermanentFailure",
    "lease_now",
    "partition_of",
]
