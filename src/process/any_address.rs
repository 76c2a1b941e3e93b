//! `[::]`, by which manifests mean every address of a host, on a host whose kernel has no IPv6.

use std::net::{Ipv4Addr, SocketAddr};

use rustix::net::{AddressFamily, SocketType, socket};
use segue_config::Config;

/// Listens on all IPv4 addresses where the file says `[::]` and the kernel has no IPv6. With IPv6, a socket of `[::]` takes
/// connections to IPv4 addresses as well.
pub(crate) fn fit(config: &mut Config) {
    if socket(AddressFamily::INET6, SocketType::STREAM, None).is_ok() {
        return;
    }
    let router = config.router.as_mut().map(|router| &mut router.listen);
    let coordinator = config.coordinator.as_mut().and_then(|coordinator| coordinator.listen.as_mut());
    let pod = config.pod.as_mut().map(|pod| &mut pod.listen);
    let admin = config.admin.as_mut().map(|admin| &mut admin.listen);
    for listen in [router, coordinator, pod, admin].into_iter().flatten() {
        *listen = without_ipv6(*listen);
    }
}

fn without_ipv6(listen: SocketAddr) -> SocketAddr {
    let is_any = listen.is_ipv6() && listen.ip().is_unspecified();
    if is_any { SocketAddr::from((Ipv4Addr::UNSPECIFIED, listen.port())) } else { listen }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_every_address_has_a_counterpart_without_ipv6() {
        for (listen, without) in [
            ("[::]:80", "0.0.0.0:80"),
            ("[::1]:80", "[::1]:80"),
            ("0.0.0.0:80", "0.0.0.0:80"),
            ("10.0.0.1:80", "10.0.0.1:80"),
        ] {
            assert_eq!(without_ipv6(listen.parse().unwrap()), without.parse().unwrap());
        }
    }
}
