//! The routes of a router's file.

use segue_config::{Config, parse};

use crate::support::{assert_accepted, assert_refused, refused};

fn accepted(text: &str) -> Config {
    parse("segue.toml", text, [], "host-1").unwrap_or_else(|errors| panic!("{errors}"))
}

fn routed(rest: &str) -> String {
    format!("[router]\nzone = \"a\"\n[[router.route]]\n{rest}\n")
}

#[test]
fn routes_stand_in_their_order_and_hold_for_all_keyspaces() {
    let text = "[router]\nzone = \"a\"\n[[router.route]]\nmatch = { path = \"/healthz\" }\nto = \"any\"\n\
                [[router.route]]\nmatch = { path_prefix = \"/a\", methods = [\"GET\"], header = \"x-r\", value = \"e\" }\n\
                to = \"pod-of-zone\"\n";
    let more = "[[keyspaces]]\nname = \"a\"\nmatch = { host = \"a\" }\npartition = { header = \"x-partition\" }\n\
                [[keyspaces]]\nname = \"b\"\npartition = { key = { header = \"x\" }, without_key = \"any\" }\n";
    let one = accepted(text).keyspaces[0].routing.clone().unwrap().exceptions;
    assert_eq!(one.zone.as_deref(), Some("a"));
    assert_eq!(one.routes.headers().map(|name| name.as_str()).collect::<Vec<_>>(), ["x-r"]);
    for keyspace in accepted(&format!("{text}{more}")).keyspaces {
        let exceptions = keyspace.routing.unwrap().exceptions;
        assert_eq!((exceptions.zone, exceptions.routes), (one.zone.clone(), one.routes.clone()));
    }
    for rest in
        ["match = { methods = [\"PURGE\"] }", "match = { header = \"x-r\" }", "match = { path_prefix = \"/a/b\" }"]
    {
        assert_accepted(&routed(&format!("{rest}\nto = \"owner\"")));
    }
}

#[test]
fn mistakes_in_a_route_are_named_with_their_place() {
    let any = "\nto = \"any\"";
    for (rest, problem) in [
        (
            "to = \"any\"".to_owned(),
            "3:1: router.route.match: not given; expected one of path, path_prefix, methods, header: a route that matched every \
             request would leave none to the owners",
        ),
        (
            format!("match = {{}}{any}"),
            "4:1: router.route.match: not given; expected one of path, path_prefix, methods, header: a route that matched every \
             request would leave none to the owners",
        ),
        (
            "match = { path = \"/a\" }".to_owned(),
            "3:1: router.route.to: not given; expected \"owner\", \"any\", \"pod-of-zone\" or { upstream = \"127.0.0.1:9000\" }",
        ),
        (
            "match = { path = \"/a\" }\nto = \"all\"".to_owned(),
            "5:6: router.route.to: \"all\" is not known; expected \"owner\", \"any\", \"pod-of-zone\" or { upstream = \"127.0.0.1:9000\" }",
        ),
        (
            "match = { path = \"/a\" }\nto = {}".to_owned(),
            "5:1: router.route.to: not given; expected \"owner\", \"any\", \"pod-of-zone\" or { upstream = \"127.0.0.1:9000\" }",
        ),
        (
            "match = { path = \"/a\" }\nto = { upstream = \"replica\" }".to_owned(),
            "5:19: router.route.to.upstream: \"replica\" is not a host and a port; expected a host and a port, such as \"10.0.0.7:8181\" or \"writer-0:8181\"",
        ),
        (
            "match = { path = \"/a\" }\nto = { upstream = \"unix:/run/app.sock\" }".to_owned(),
            "5:19: router.route.to.upstream: \"unix:/run/app.sock\" is not a host and a port; expected a host and a port, such as \"10.0.0.7:8181\" or \"writer-0:8181\"",
        ),
        (
            "match = { path = \"/a\" }\nto = { upstream = \"0.0.0.0:9000\" }".to_owned(),
            "5:19: router.route.to.upstream: \"0.0.0.0:9000\" is no address that the router could connect to; expected a host and a port, such as \"10.0.0.7:8181\" or \"writer-0:8181\"",
        ),
        (
            format!("match = {{ path = \"a\" }}{any}"),
            "4:18: router.route.match.path: \"a\" does not begin with '/'; expected a path, such as \"/healthz\"",
        ),
        (
            format!("match = {{ path_prefix = \"/a/*\" }}{any}"),
            "4:25: router.route.match.path_prefix: \"/a/*\" has a '*', which would match itself alone; longer paths match in any \
             case; expected the beginning of a path, such as \"/orders\"",
        ),
        (
            format!("match = {{ path = \"/a\", path_prefix = \"/b\" }}{any}"),
            "4:24: router.route.match.path_prefix: given beside router.route.match.path (segue.toml:4:11); expected one of the \
             two",
        ),
        (
            format!("match = {{ methods = [] }}{any}"),
            "4:21: router.route.match.methods: empty; expected methods, such as [\"GET\", \"HEAD\"]",
        ),
        (
            format!("match = {{ methods = [\"get\"] }}{any}"),
            "4:21: router.route.match.methods: \"get\" is not a method; expected methods, such as [\"GET\", \"HEAD\"]; did you \
             mean \"GET\"",
        ),
        (
            format!("match = {{ path = \"/a\", value = \"x\" }}{any}"),
            "4:24: router.route.match.value: given without router.route.match.header; expected both",
        ),
        (
            format!("match = {{ header = \"x-a\", value = \" x\" }}{any}"),
            "4:35: router.route.match.value: \" x\" is not a value of a header; expected the value of a header",
        ),
        (
            format!("match = {{ header = \"host\" }}{any}"),
            "4:20: router.route.match.header: \"host\" is a header by HTTP/1.1 alone; expected another header",
        ),
    ] {
        assert_refused(&routed(&rest), &[&format!("segue.toml:{problem}")]);
    }
    assert_refused(
        "[router]\n[[router.route]]\nmatch = { path = \"/a\" }\nto = \"pod-of-zone\"\n",
        &["segue.toml:4:6: router.route.to: \"pod-of-zone\" without router.zone; expected the router's zone there"],
    );
    let text = refused(&routed("match = { pth = \"/a\" }\nto = \"any\""));
    assert!(
        text.contains("router.route.match.pth: unknown key; expected one of path, path_prefix, methods, header"),
        "{text}"
    );
    let text = refused(&routed("match = { path = \"/a\" }\nto = { upstrem = \"replica:9000\" }"));
    assert!(
        text.contains("router.route.to.upstrem: unknown key; expected one of upstream; did you mean upstream"),
        "{text}"
    );
    assert!(!text.contains("not given"), "{text}");
    let text = refused("[router]\nroute = 7\n");
    assert!(text.contains("router.route: not a list of tables; expected [[router.route]]"), "{text}");
}

#[test]
fn a_route_may_lead_to_a_service_by_its_address_or_name_and_not_back_to_the_router() {
    for address in ["127.0.0.1:9000", "replica.persons:9000", "[::1]:9000"] {
        let config =
            accepted(&routed(&format!("match = {{ path_prefix = \"/a\" }}\nto = {{ upstream = \"{address}\" }}")));
        let routes = config.keyspaces[0].routing.clone().unwrap().exceptions.routes;
        assert_eq!(routes.upstreams().map(|upstream| &**upstream).collect::<Vec<_>>(), [address]);
    }
    let back = |listen: &str| {
        format!(
            "[router]\nlisten = \"{listen}\"\n[[router.route]]\nmatch = {{ path = \"/a\" }}\nto = {{ upstream = \"127.0.0.1:9000\" }}\n"
        )
    };
    for listen in ["127.0.0.1:9000", "0.0.0.0:9000"] {
        assert_refused(
            &back(listen),
            &[&format!(
                "segue.toml:2:1: router.listen: {listen} is router.route.to.upstream of a route, too: the router would send \
                 itself its requests; expected the address of another service in the route"
            )],
        );
    }
    for listen in ["127.0.0.1:9001", "127.0.0.2:9000"] {
        assert_accepted(&back(listen));
    }
}
