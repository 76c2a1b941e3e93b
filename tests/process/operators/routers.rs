//! `segue status --routers`: the tables of routers, compared with the store.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;

use segue_tests::certificates::Authority;
use segue_tests::ports::free_address;
use segue_tests::process::until;
use serde_json::Value;

use super::operated::Operated;
use crate::writers::PARTITIONS;

#[test]
fn the_tables_of_routers_are_compared_with_the_store() {
    let mut cluster = Operated::start(&["w-0", "w-1"]);
    let (code, said) = cluster.says(&["status", "--routers"]);
    assert!(code == Some(0) && said == "no router is registered\n", "{said}");
    let admin = free_address();
    cluster.0.router("r-0", free_address(), admin);
    assert_eq!(cluster.does(&["status", "--routers"]), format!("same     r-0 at {admin}\n"));

    // Routers that are not what they should be: one has an old table, one is silent, one cannot be asked.
    let (stale, silent) = (TcpListener::bind("127.0.0.1:0").unwrap(), TcpListener::bind("127.0.0.1:0").unwrap());
    for (name, admin) in [("r-1", Some(&stale)), ("r-2", Some(&silent)), ("r-3", None)] {
        let admin = admin.map(|listener| listener.local_addr().unwrap().to_string());
        let record = serde_json::json!({ "router_name": name, "admin": admin }).to_string();
        cluster.put(|keys| keys.router(name), &record, true);
    }
    std::thread::spawn(move || {
        let table: Vec<Value> = (0..PARTITIONS)
            .map(|partition| serde_json::json!({ "partition": partition, "stage": "open", "pod": "w-7", "epoch": 1 }))
            .collect();
        let body = serde_json::json!({ "router": { "name": "r-1", "partitions": table } }).to_string();
        for stream in stale.incoming() {
            let mut stream = stream.unwrap();
            let _ = stream.read(&mut [0; 4096]);
            let _ = write!(stream, "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len());
        }
    });
    let (code, said) = cluster.says(&["status", "--routers"]);
    assert_eq!(code, Some(1));
    assert!(said.contains(&format!("same     r-0 at {admin}")), "{said}");
    assert!(said.contains("DIFFERS  r-1 at ") && said.contains(": 16 partitions"), "{said}");
    assert!(said.contains(" at epoch ") && said.contains("; router: w-7 at epoch 1, open"), "{said}");
    assert!(said.contains("UNKNOWN  r-2 at ") && said.contains("no response within 5s"), "{said}");
    assert!(said.contains("UNKNOWN  r-3 at no address: ") && said.contains("[admin] advertise"), "{said}");
    drop(silent);
}

#[test]
fn the_tables_of_routers_are_compared_by_tls_too() {
    let mut cluster = Operated::start(&["w-0"]);
    let authority = Authority::new(cluster.0.path(), "ours");
    let (served, admin) = (authority.issue("served"), free_address());
    let tls = format!("cert = \"{}\"\nkey = \"{}\"", served.cert.display(), served.key.display());
    let config = cluster.0.router_config("r-0", free_address(), admin).with("admin.tls", &tls);
    let router = cluster.0.run("r-0", &config);
    cluster.0.processes.insert("r-0".to_owned(), router);
    until("the router", || cluster.json(&["status"])["routers"] == serde_json::json!(["r-0"]));
    let (code, said) = cluster.says(&["status", "--routers"]);
    assert!(code == Some(1) && said.contains("UNKNOWN  r-0 at ") && said.contains("--admin-ca"), "{said}");
    let ca = authority.file.to_str().unwrap();
    let said = cluster.does(&["status", "--routers", "--admin-ca", ca]);
    assert_eq!(said, format!("same     r-0 at {admin}\n"));
}
