//! TLS: the settings that belong together, and the place at which a problem of a file is shown.

use std::path::Path;

use segue_config::parse;
use segue_proxy::tls::{ClientFiles, IdentityFiles, ServerFiles};

use crate::support::{assert_accepted, assert_refused, refused};

#[test]
fn the_files_of_all_sections_are_understood() {
    let text = "[store]\nendpoints = [\"https://etcd:2379\"]\ntls = { ca = \"a\", cert = \"b\", key = \"c\" }\n\
                [router]\ntls = { cert = \"d\", key = \"e\", client_ca = \"f\" }\n\
                [router.upstream.tls]\nca = \"g\"\nserver_name = \"pods.example\"\n\
                [pod]\ntls = { cert = \"h\", key = \"i\" }\nupstream_tls = { ca = \"m\", server_name = \"app\" }\n\
                [coordinator]\nlisten = \"127.0.0.1:7070\"\ntls = { cert = \"j\", key = \"k\", client_ca = \"l\" }\n";
    let config = parse("f", text, [], "host-1").unwrap();
    let identity = Some(IdentityFiles { cert: "b".into(), key: "c".into() });
    assert_eq!(config.store.tls, Some(ClientFiles { ca: "a".into(), identity, server_name: None }));
    let router = config.router.unwrap();
    let tls = ServerFiles {
        cert: "d".into(),
        key: "e".into(),
        client_ca: Some("f".into()),
        client_cert_is_optional: false,
        others: Vec::new(),
    };
    assert_eq!(router.tls, Some(tls));
    let tls = ClientFiles { ca: "g".into(), identity: None, server_name: Some("pods.example".into()) };
    assert_eq!(router.upstream.tls, Some(tls));
    let pod = config.pod.unwrap();
    let tls = ClientFiles { ca: "m".into(), identity: None, server_name: Some("app".into()) };
    assert_eq!(pod.upstream_tls, Some(tls));
    assert_eq!(
        pod.tls,
        Some(ServerFiles {
            cert: "h".into(),
            key: "i".into(),
            client_ca: None,
            client_cert_is_optional: false,
            others: Vec::new()
        })
    );
    let tls = ServerFiles {
        cert: "j".into(),
        key: "k".into(),
        client_ca: Some("l".into()),
        client_cert_is_optional: false,
        others: Vec::new(),
    };
    assert_eq!(config.coordinator.unwrap().tls, Some(tls));
}

#[test]
fn a_router_may_have_certificates_for_other_names() {
    let others = [("b", "c"), ("d", "e")].map(|(cert, key)| IdentityFiles { cert: cert.into(), key: key.into() });
    let inline = "[router]\ntls = { cert = \"a\", key = \"k\", certificates = [{ cert = \"b\", key = \"c\" }, \
                  { key = \"e\", cert = \"d\" }] }\n";
    let tables = "[router.tls]\ncert = \"a\"\nkey = \"k\"\n[[router.tls.certificates]]\ncert = \"b\"\nkey = \"c\"\n\
                  [[router.tls.certificates]]\ncert = \"d\"\nkey = \"e\"\n[router]\n";
    for text in [inline, tables] {
        let tls = parse("f", text, [], "host-1").unwrap().router.unwrap().tls.unwrap();
        assert_eq!(tls.others, others, "{text}");
    }
    let plain = "[router]\ntls = { cert = \"a\", key = \"k\" }\n";
    let variable = "[{ cert = \"b\", key = \"c\" }, { cert = \"d\", key = \"e\" }]".to_owned();
    let variable = [("SEGUE__ROUTER__TLS__CERTIFICATES".to_owned(), variable)];
    assert_eq!(parse("f", plain, variable, "host-1").unwrap().router.unwrap().tls.unwrap().others, others);

    for (list, fact) in [
        ("\"b.pem\"", "\"b.pem\" is not a list of tables"),
        ("{ cert = \"b\", key = \"c\" }", "a table is not a list of tables"),
        ("[\"b.pem\"]", "\"b.pem\" is not a table"),
        ("[{ cert = \"b\" }]", "a table without key"),
        ("[{ cert = \"b\", key = \"\" }]", "key is empty"),
        ("[{ cert = \"b\", key = 1 }]", "1 is not a string"),
        ("[{ cert = \"b\", key = \"c\", sni = \"d\" }]", "unknown key \"sni\""),
    ] {
        let told = refused(&format!("[router]\ntls = {{ cert = \"a\", key = \"k\", certificates = {list} }}\n"));
        let place =
            format!("segue.toml:2:47: router.tls.certificates: {fact}; expected a list of certificates, such as");
        assert!(told.starts_with(&place) && told.lines().count() == 1, "{told}");
    }
    // Certificates for other names are no use without one for all the others.
    assert!(refused("[router]\ntls = { certificates = [] }\n").contains("router.tls: given without router.tls.cert"));
    assert!(refused("[pod]\ntls = { cert = \"a\", key = \"k\", certificates = [] }\n").contains("unknown key"));
}

#[test]
fn half_a_section_is_refused_and_never_means_clear_text() {
    let needs = "expected the files cert and key, and client_ca if clients must have certificates";
    assert_refused(
        "[router]\ntls = {}\n[pod.tls]\ncert = \"a\"\n",
        &[
            &format!("segue.toml:2:1: router.tls: given without router.tls.cert; {needs}"),
            &format!("segue.toml:2:1: router.tls: given without router.tls.key; {needs}"),
            &format!("segue.toml:3:6: pod.tls: given without pod.tls.key; {needs}"),
        ],
    );
    assert_refused(
        "[coordinator]\ntls = { cert = \"a\", key = \"b\" }\n",
        &[
            "segue.toml:2:9: coordinator.tls.cert: given without coordinator.listen; expected both, because TLS is for that \
           listener",
        ],
    );
    assert_refused(
        "[router.upstream]\ntls = { cert = \"a\" }\n[pod]\n[router]\n",
        &[
            "segue.toml:2:1: router.upstream.tls: given without router.upstream.tls.ca; expected the file ca with the \
             authorities to trust (those of the system: /etc/ssl/certs/ca-certificates.crt)",
            "segue.toml:2:9: router.upstream.tls.cert: given without router.upstream.tls.key; expected both or neither",
        ],
    );
}

#[test]
fn the_endpoints_of_etcd_agree_with_tls() {
    assert_refused(
        "[store]\nendpoints = [\"https://a:1\"]\n[pod]\n",
        &[
            "segue.toml:2:13: store.endpoints: an https:// URL, and nothing says which certificates to trust; expected the \
           file ca with the authorities to trust (those of the system: /etc/ssl/certs/ca-certificates.crt), in store.tls",
        ],
    );
    assert_refused(
        "[store]\nendpoints = [\"https://a:1\", \"http://b:1\"]\ntls = { ca = \"a\" }\n[pod]\n",
        &["segue.toml:2:13: store.endpoints: \"http://b:1\" is not secured, although store.tls is given; expected \
           https:// URLs; did you mean \"https://b:1\""],
    );
    assert_refused(
        "[store]\ntls = { ca = \"a\" }\n[pod]\n",
        &["segue.toml:2:1: store.tls: given, and the endpoint is the default http://127.0.0.1:2379; expected \
           store.endpoints with https:// URLs"],
    );
    assert_accepted("[store]\nkind = \"memory\"\n[pod]\n");
}

#[test]
fn names_of_servers_and_urls_of_hooks_are_checked() {
    let name = |name: &str| format!("[router.upstream]\ntls = {{ ca = \"a\", server_name = \"{name}\" }}\n[router]\n");
    for good in ["pods", "pods.example", "10.0.0.7", "::1"] {
        assert_accepted(&name(good));
    }
    for bad in ["", "pods:8181", "https://pods", "a b"] {
        let told = refused(&name(bad));
        assert!(told.contains("2:33: router.upstream.tls.server_name: ") && told.lines().count() == 1, "{told}");
    }
    let hook = "[pod]\nwarm_url = \"https://127.0.0.1:1/warm\"\n";
    assert!(refused(hook).contains("hooks are called without TLS"), "{}", refused(hook));
}

#[test]
fn a_problem_of_a_file_stands_where_the_file_is_named() {
    let folder = tempfile::TempDir::new().unwrap();
    let path = folder.path().join("segue.toml");
    std::fs::write(&path, "[router]\nname = \"r\"\ntls = { cert = \"c.pem\", key = \"k.pem\" }\n").unwrap();
    let located = segue_config::load(&path).unwrap();
    let problem = located.problem("router.tls.key", "no such file", "expected a file");
    let place = |path: &Path| format!("{}:3:31: router.tls.key: no such file; expected a file", path.display());
    assert_eq!(problem.to_string(), place(&path));
    assert_eq!(located.clone().unless(vec![problem]).unwrap_err().to_string(), place(&path));
    assert!(located.unless(Vec::new()).is_ok());
}
