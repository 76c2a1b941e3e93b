//! Decides how a new process uses what the old one offers: the name to register with, and the use of each socket.

use std::net::SocketAddr;

/// No configured name contains this, so the name of a new process never belongs to another router.
const NEXT: &str = "~next";

/// Returns the name to register with beside the old process: two routers of the same name cannot be registered.
pub(super) fn name(configured: &str, predecessor: &str) -> String {
    if predecessor == configured { format!("{configured}{NEXT}") } else { configured.to_owned() }
}

/// The offered sockets that this process uses.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct AdoptedSockets<T> {
    pub(super) router: Vec<T>,
    pub(super) admin: Option<T>,
}

/// Assigns sockets by the addresses of this process's configuration. A socket whose address is no longer configured is
/// dropped.
pub(super) fn adopt<T>(
    offered: impl IntoIterator<Item = (SocketAddr, T)>,
    router: SocketAddr,
    admin: Option<SocketAddr>,
) -> AdoptedSockets<T> {
    let mut adopted = AdoptedSockets { router: Vec::new(), admin: None };
    for (address, socket) in offered {
        if address == router {
            adopted.router.push(socket);
        } else if Some(address) == admin {
            adopted.admin = Some(socket);
        }
    }
    adopted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_take_turns() {
        let second = name("r", "r");
        assert_eq!(second, "r~next");
        assert_eq!(name("r", &second), "r");
        assert_eq!(name("renamed", "r"), "renamed");
        assert_eq!(name("renamed", "r~next"), "renamed");
    }

    #[test]
    fn a_socket_is_assigned_by_its_address() {
        let [a, b, c]: [SocketAddr; 3] = ["127.0.0.1:1", "127.0.0.1:2", "[::]:1"].map(|text| text.parse().unwrap());
        let offered = [(a, 'x'), (b, 'y'), (a, 'z'), (c, 'w')];
        assert_eq!(adopt(offered, a, Some(b)), AdoptedSockets { router: vec!['x', 'z'], admin: Some('y') });
        assert_eq!(adopt(offered, a, None), AdoptedSockets { router: vec!['x', 'z'], admin: None });
        assert_eq!(
            adopt(offered, "127.0.0.2:1".parse().unwrap(), Some(c)),
            AdoptedSockets { router: vec![], admin: Some('w') }
        );
    }
}
