//! `pods.proto` as it was published, against the present one: no field's number, type or name may change.
//!
//! The published descriptor set is `coordination/proto/segue/v1/pods.binpb`. A compatible change of the .proto is
//! published with `SEGUE_PUBLISH_PROTO=1 cargo test --workspace --test compatibility`.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::path::PathBuf;

use prost::Message as _;
use prost_types::{DescriptorProto, EnumDescriptorProto, FileDescriptorSet};

fn published() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../proto/segue/v1/pods.binpb")
}

fn parse(bytes: &[u8]) -> FileDescriptorSet {
    FileDescriptorSet::decode(bytes).unwrap()
}

/// The contract with clients: one line for each field, enum value and call, by its number or name.
fn contract(set: &FileDescriptorSet) -> BTreeMap<String, String> {
    let mut lines = BTreeMap::new();
    for file in set.file.iter().filter(|file| file.package() == "segue.v1") {
        for message in &file.message_type {
            of_message(message.name(), message, &mut lines);
        }
        file.enum_type.iter().for_each(|it| of_enum(it, &mut lines));
        for service in &file.service {
            for method in &service.method {
                let call =
                    (method.input_type(), method.client_streaming(), method.output_type(), method.server_streaming());
                lines.insert(format!("call {}.{}", service.name(), method.name()), format!("{call:?}"));
            }
        }
    }
    lines
}

fn of_message(path: &str, message: &DescriptorProto, lines: &mut BTreeMap<String, String>) {
    for field in &message.field {
        let oneof = field.oneof_index.map(|index| message.oneof_decl[index as usize].name());
        let what = (field.name(), field.r#type(), field.label(), field.type_name(), oneof);
        lines.insert(format!("field {path} = {}", field.number()), format!("{what:?}"));
    }
    for nested in &message.nested_type {
        of_message(&format!("{path}.{}", nested.name()), nested, lines);
    }
}

fn of_enum(it: &EnumDescriptorProto, lines: &mut BTreeMap<String, String>) {
    for value in &it.value {
        lines.insert(format!("value {} = {}", it.name(), value.number()), value.name().to_owned());
    }
}

/// Returns what of the published contract the present one breaks.
fn broken(published: &FileDescriptorSet, present: &FileDescriptorSet) -> Vec<String> {
    let present = contract(present);
    let differs = |(key, was): (String, String)| match present.get(&key) {
        Some(is) if *is == was => None,
        is => Some(format!("{key}: was {was}, is {}", is.map_or("absent", String::as_str))),
    };
    contract(published).into_iter().filter_map(differs).collect()
}

#[test]
fn the_present_proto_is_compatible_with_the_published_one_and_published_itself() {
    let present = segue_grpc::proto::DESCRIPTORS;
    if let Ok(bytes) = std::fs::read(published()) {
        let broken = broken(&parse(&bytes), &parse(present));
        assert!(broken.is_empty(), "clients in use would break:\n{}", broken.join("\n"));
    }
    if std::env::var_os("SEGUE_PUBLISH_PROTO").is_some() {
        std::fs::write(published(), present).unwrap();
    }
    let bytes = std::fs::read(published()).unwrap();
    assert!(
        contract(&parse(&bytes)) == contract(&parse(present)),
        "pods.proto has additions: publish them with SEGUE_PUBLISH_PROTO=1 cargo test --workspace --test compatibility"
    );
}

#[test]
fn a_changed_number_type_or_name_and_a_removed_call_are_found() {
    let set = parse(segue_grpc::proto::DESCRIPTORS);
    let changed = |change: &dyn Fn(&mut prost_types::FileDescriptorProto)| {
        let mut changed = set.clone();
        change(changed.file.iter_mut().find(|file| file.package() == "segue.v1").unwrap());
        broken(&set, &changed)
    };
    assert!(changed(&|_| ()).is_empty());
    assert_eq!(changed(&|file| file.message_type[0].field[0].number = Some(99)).len(), 1);
    assert_eq!(changed(&|file| file.message_type[0].field[0].name = Some("other".to_owned())).len(), 1);
    assert_eq!(changed(&|file| file.message_type[0].field[0].r#type = Some(9)).len(), 1);
    assert_eq!(changed(&|file| file.enum_type[0].value[1].name = Some("OTHER".to_owned())).len(), 1);
    assert_eq!(changed(&|file| drop(file.service[0].method.pop())).len(), 1);
    // An addition breaks nobody.
    let field = prost_types::FieldDescriptorProto { number: Some(500), ..Default::default() };
    assert!(changed(&|file| file.message_type[0].field.push(field.clone())).is_empty());
}
