//! Explanations of a key: the partition that the keyspace's mapping gives it, and that partition explained.
//!
//! The routers' own function maps the key ([`PartitionSource::locate_key`]).

use segue_protocol::ids::PartitionId;
use segue_protocol::records::Partitioner;
use segue_protocol::view::View;
use segue_proxy::routing::partition_key::{JoinedHeaders, KeySource, LocationError, PartitionSource};
use segue_proxy::tls::ClientTls;
use serde::{Deserialize, Serialize};

use super::explain::Explanation;
use super::{Link, OperatorError, PartitionReport};

/// A key explained.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct KeyReport {
    key: String,
    /// The part of a request that has the key, in words.
    taken_from: String,
    /// The hash that maps it. `None` if requests name the partition itself.
    hash: Option<String>,
    /// Its partition.
    #[serde(flatten)]
    explained: PartitionReport,
}

impl Link {
    /// Explains a key.
    pub(crate) async fn explain_key(&self, key: &str) -> Result<KeyReport, OperatorError> {
        let (mapping, partition) = locate(&self.view().await?, key).map_err(OperatorError::Refused)?;
        let (taken_from, hash) = in_words(&mapping);
        let explained = self.explain_partition(partition).await?;
        Ok(KeyReport { key: key.to_owned(), taken_from, hash, explained })
    }
}

/// Returns the keyspace's mapping, and the partition of a key under it.
fn locate(view: &View, key: &str) -> Result<(PartitionSource, PartitionId), String> {
    let Some(config) = &view.config else {
        return Err(match view.malformed.get(&view.keys().config()) {
            Some(reason) => format!("the keyspace's settings cannot be read: {reason}"),
            None => "the keyspace has no settings yet: no coordinator has led".to_owned(),
        });
    };
    let no_mapping =
        || "the keyspace has no mapping of keys yet: the first router that registers writes its own".to_owned();
    let partitioner = config.value.partitioner.as_ref().ok_or_else(no_mapping)?;
    let unknown = || format!("the keyspace maps requests by {partitioner}, which this version of segue does not know");
    let mapping = PartitionSource::described(partitioner).ok_or_else(unknown)?;
    let partitions = view.partitions();
    match mapping.locate_key(key, partitions) {
        Ok(location) => Ok((mapping, location.partition)),
        Err(LocationError::Missing) => Err("an empty key is no key: routers refuse its requests".to_owned()),
        Err(_) if *partitioner == Partitioner::NUMBER => {
            Err(format!("requests name their partition by its number, and {key} is none of the {partitions}"))
        }
        Err(_) => {
            let (taken_from, _) = in_words(&mapping);
            Err(format!("no request has this key: routers refuse it in {taken_from}, or read another key in it"))
        }
    }
}

/// Returns the part of a request that has the key, and the name of the hash.
fn in_words(mapping: &PartitionSource) -> (String, Option<String>) {
    match mapping {
        PartitionSource::Number { .. } => ("the header that names the partition by its number".to_owned(), None),
        PartitionSource::Key { source, hash } => {
            let place = match source {
                KeySource::Header(name) => format!("the header {name}"),
                KeySource::Headers(JoinedHeaders { names, join }) => {
                    let names: Vec<_> = names.iter().map(|name| name.as_str()).collect();
                    format!("the headers {}, joined by {join:?}", names.join(" and "))
                }
                KeySource::Path(templates) => format!("the path {templates}"),
                KeySource::Query(name) => format!("the query parameter {name}"),
                KeySource::Cookie(name) => format!("the cookie {name}"),
                KeySource::Host => "the host, in lower case and without its port".to_owned(),
                KeySource::Body(fields) => format!("the body, {fields}"),
            };
            (place, Some(hash.name().to_owned()))
        }
    }
}

impl Explanation for KeyReport {
    fn in_words(&self) -> String {
        let hash = self.hash.as_ref().map_or(String::new(), |hash| format!(", by its {hash} hash"));
        format!("key         {}\ntaken from  {}{hash}\n{}", self.key, self.taken_from, self.explained.in_words())
    }

    fn has_participants(&self) -> bool {
        self.explained.has_participants()
    }

    async fn ask(&mut self, tls: Option<&ClientTls>) {
        self.explained.ask(tls).await;
    }

    fn leave_unasked(&mut self, why: &str) {
        self.explained.leave_unasked(why);
    }
}

#[cfg(test)]
mod tests {
    use segue_protocol::ids::Revision;
    use segue_protocol::keys::Keyspace;
    use segue_protocol::txn::{KeyValue, Snapshot};
    use segue_proxy::routing::key_hash::KeyHash;

    use super::*;

    fn located(config: Option<&str>, key: &str) -> Result<(String, u32), String> {
        let entry = |value: &str| KeyValue {
            key: "/segue/default/config".to_owned(),
            value: value.as_bytes().to_vec(),
            lease: None,
            create_revision: Revision::new(2),
            mod_revision: Revision::new(2),
        };
        let snapshot = Snapshot { revision: Revision::new(9), entries: config.map(entry).into_iter().collect() };
        let view = View::from_snapshot(Keyspace::new("/segue/", "default"), snapshot);
        locate(&view, key).map(|(mapping, partition)| (in_words(&mapping).0, partition.get()))
    }

    #[test]
    fn a_key_is_located_by_the_mapping_in_the_settings() {
        let keyed = r#"{"partitions":64,"partitioner":{"key":"path:/persons/{key}","hash":"murmur2"}}"#;
        assert_eq!(located(Some(keyed), "foobar"), Ok(("the path /persons/{key}".to_owned(), 62)));
        let several = r#"{"partitions":64,"partitioner":{"key":"headers:x-a x-b joined by :","hash":"murmur2"}}"#;
        let (taken_from, partition) = located(Some(several), "foo:bar").unwrap();
        assert_eq!(taken_from, "the headers x-a and x-b, joined by \":\"");
        assert_eq!(PartitionId::new(partition), KeyHash::Murmur2.partition(b"foo:bar", 64));
        assert!(located(Some(several), "foo").unwrap_err().starts_with("no request has this key"));
        let body = r#"{"partitions":64,"partitioner":{"key":"grpc:1,2 joined by :","hash":"murmur2"}}"#;
        let (taken_from, in_body) = located(Some(body), "foo:bar").unwrap();
        assert_eq!((taken_from.as_str(), in_body), ("the body, grpc:1,2 joined by :", partition));
        let numbered = r#"{"partitions":64,"partitioner":{"number":true}}"#;
        assert_eq!(located(Some(numbered), "63").map(|(_, partition)| partition), Ok(63));
    }

    #[test]
    fn a_keyspace_without_a_mapping_and_a_key_that_is_refused_are_told_apart() {
        let keyed = r#"{"partitions":64,"partitioner":{"key":"path:/persons/{key}","hash":"murmur2"}}"#;
        let numbered = r#"{"partitions":64,"partitioner":{"number":true}}"#;
        let unknown = r#"{"partitions":64,"partitioner":{"key":"moon","hash":"murmur2"}}"#;
        for (config, key, part) in [
            (None, "a", "has no settings yet"),
            (Some("7"), "a", "settings cannot be read"),
            (Some(r#"{"partitions":64}"#), "a", "has no mapping of keys yet"),
            (Some(unknown), "a", "by the murmur2 hash of moon, which this version"),
            (Some(keyed), "", "an empty key is no key"),
            (Some(keyed), "a/b", "routers refuse it in the path /persons/{key}"),
            (Some(numbered), "64", "64 is none of the 64"),
        ] {
            let error = located(config, key).unwrap_err();
            assert!(error.contains(part), "{key:?}: {error}");
        }
    }
}
