//! What a newcomer makes of what it is given: its name, and which socket is for what.

use std::net::SocketAddr;

/// No configured name has this in it, so a successor is never taken for another router.
const NEXT: &str = "~next";

/// The name to register with beside the process that is to be succeeded: two of one name cannot be registered.
pub(super) fn name(configured: &str, predecessor: &str) -> String {
    if predecessor == configured { format!("{configured}{NEXT}") } else { configured.to_owned() }
}

/// What is taken of the sockets that are given.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Allotment<T> {
    pub(super) router: Vec<T>,
    pub(super) admin: Option<T>,
}

/// By address, as this process's file has it: who is given a socket of an address that is no longer configured leaves it.
pub(super) fn allot<T>(
    given: impl IntoIterator<Item = (SocketAddr, T)>,
    router: SocketAddr,
    admin: Option<SocketAddr>,
) -> Allotment<T> {
    let mut allotment = Allotment { router: Vec::new(), admin: None };
    for (address, socket) in given {
        if address == router {
            allotment.router.push(socket);
        } else if Some(address) == admin {
            allotment.admin = Some(socket);
        }
    }
    allotment
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
    fn a_socket_is_for_what_its_address_says() {
        let [a, b, c]: [SocketAddr; 3] = ["127.0.0.1:1", "127.0.0.1:2", "[::]:1"].map(|text| text.parse().unwrap());
        let given = [(a, 'x'), (b, 'y'), (a, 'z'), (c, 'w')];
        assert_eq!(allot(given, a, Some(b)), Allotment { router: vec!['x', 'z'], admin: Some('y') });
        assert_eq!(allot(given, a, None), Allotment { router: vec!['x', 'z'], admin: None });
        assert_eq!(
            allot(given, "127.0.0.2:1".parse().unwrap(), Some(c)),
            Allotment { router: vec![], admin: Some('w') }
        );
    }
}
