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
            "3:1: router.route.to: not given; expected one of owner, any, pod-of-zone",
        ),
        (
            "match = { path = \"/a\" }\nto = \"all\"".to_owned(),
            "5:6: router.route.to: \"all\" is not known; expected one of owner, any, pod-of-zone",
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
    let text = refused("[router]\nroute = 7\n");
    assert!(text.contains("router.route: not a list of tables; expected [[router.route]]"), "{text}");
}
