// Package pod is the library with which a service in Go takes part in Segue: it owns partitions, and takes and gives them up
// without losing a request.
//
// For: registering a pod at the coordinators or at a sidecar's stream, preparing and releasing the state of partitions, and
// admitting only requests of partitions that the pod owns. Not for: services that a sidecar represents by HTTP hooks, which need
// no library.
//
//  1. [New] takes the callbacks of the service, all of them optional, and what the pod registers.
//  2. [Membership.Run] registers the pod, and calls the callbacks when a partition comes or goes.
//  3. [Membership.Handler] goes in front of the service's [net/http.Handler]. A request that it admits has an [Owned] in its
//     context ([FromContext]): the partition, the epoch, and whether it may still write. Every other one gets 421, and the router
//     sends it again.
//  4. [Membership.Leave] hands all partitions over before the process ends.
package pod
