//! `pods.proto` as it was published, against the present one: no field's number, type or name may change, and what is
//! reserved stays so. And the code that is committed beside it, against what it compiles to.
//!
//! The published descriptor set is `coordination/proto/segue/v1/pods.binpb`, the code `segue.v1.rs`. A compatible change of
//! the .proto is published, and the code made anew, with
//! `SEGUE_PUBLISH_PROTO=1 cargo test --workspace --test grpc compatibility`. The package in Python has a copy of the descriptor
//! set; the code in Go is made by `clients/go/generate`, and compared by its own tests.
use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;

use prost::Message as _;
use prost_types::descriptor_proto::ReservedRange;
use prost_types::enum_descriptor_proto::EnumReservedRange;
use prost_types::{DescriptorProto, EnumDescriptorProto, FileDescriptorSet};

fn published() -> PathBuf {
    committed("pods.binpb")
}

fn committed(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../proto/segue/v1").join(name)
}

/// The copy of the descriptor set from which the package in Python makes its messages.
fn of_python() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../clients/python/segue_pod/pods.binpb")
}

fn parse(bytes: &[u8]) -> FileDescriptorSet {
    FileDescriptorSet::decode(bytes).unwrap()
}

/// The contract with clients: one line for each field, enum value, call and reserved name, by its number or name.
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
    for name in &message.reserved_name {
        lines.insert(format!("reserved {path}.{name}"), "a name".to_owned());
    }
    for nested in &message.nested_type {
        of_message(&format!("{path}.{}", nested.name()), nested, lines);
    }
    message.enum_type.iter().for_each(|it| of_enum(it, lines));
}

fn of_enum(it: &EnumDescriptorProto, lines: &mut BTreeMap<String, String>) {
    for value in &it.value {
        lines.insert(format!("value {} = {}", it.name(), value.number()), value.name().to_owned());
    }
    for name in &it.reserved_name {
        lines.insert(format!("reserved {}.{name}", it.name()), "a name".to_owned());
    }
}

/// The reserved numbers of each message and enum, as ranges with their last numbers.
type Reserved = BTreeMap<String, Vec<(i32, i32)>>;

fn reserved(set: &FileDescriptorSet) -> Reserved {
    let mut ranges = BTreeMap::new();
    for file in set.file.iter().filter(|file| file.package() == "segue.v1") {
        file.message_type.iter().for_each(|message| reserved_in(message.name(), message, &mut ranges));
        file.enum_type.iter().for_each(|it| reserved_in_enum(it, &mut ranges));
    }
    ranges.values_mut().for_each(|ranges: &mut Vec<_>| ranges.sort_unstable());
    ranges
}

fn reserved_in(path: &str, message: &DescriptorProto, ranges: &mut Reserved) {
    // A message's range ends before its `end`, an enum's with it.
    let of_message = message.reserved_range.iter().map(|range| (range.start(), range.end() - 1));
    ranges.insert(path.to_owned(), of_message.collect());
    for nested in &message.nested_type {
        reserved_in(&format!("{path}.{}", nested.name()), nested, ranges);
    }
    message.enum_type.iter().for_each(|it| reserved_in_enum(it, ranges));
}

fn reserved_in_enum(it: &EnumDescriptorProto, ranges: &mut Reserved) {
    let of_enum = it.reserved_range.iter().map(|range| (range.start(), range.end()));
    ranges.insert(it.name().to_owned(), of_enum.collect());
}

/// Returns the first number of a range that is in none of these ranges.
fn freed((first, last): (i32, i32), ranges: &[(i32, i32)]) -> Option<i32> {
    let mut number = first;
    loop {
        let Some((_, end)) = ranges.iter().find(|(from, to)| (*from..=*to).contains(&number)) else {
            return Some(number);
        };
        if *end >= last {
            return None;
        }
        number = end + 1;
    }
}

/// Returns what of the published contract the present one breaks.
fn broken(published: &FileDescriptorSet, present: &FileDescriptorSet) -> Vec<String> {
    let (lines, still_reserved) = (contract(present), reserved(present));
    let differs = |(key, was): (String, String)| match lines.get(&key) {
        Some(is) if *is == was => None,
        is => Some(format!("{key}: was {was}, is {}", is.map_or("absent", String::as_str))),
    };
    let mut broken: Vec<_> = contract(published).into_iter().filter_map(differs).collect();
    for (path, ranges) in reserved(published) {
        let still_reserved = still_reserved.get(&path).map_or(&[][..], Vec::as_slice);
        let freed = ranges.into_iter().filter_map(|range| freed(range, still_reserved));
        broken.extend(freed.map(|number| format!("reserved {path} = {number}: is not reserved any more")));
    }
    broken
}

/// Compares the published descriptor set, as it was read, with the present one. Without a published one nothing would be
/// compared, so that is an error unless the present one is about to be published.
fn check(published: io::Result<Vec<u8>>, present: &[u8], publishes: bool) -> Result<(), String> {
    let published = match published {
        Ok(bytes) => parse(&bytes),
        Err(error) if error.kind() == io::ErrorKind::NotFound && publishes => return Ok(()),
        Err(error) => return Err(format!("the published pods.binpb cannot be read: {error}")),
    };
    let present = parse(present);
    let broken = broken(&published, &present);
    if !broken.is_empty() {
        return Err(format!("clients in use would break:\n{}", broken.join("\n")));
    }
    if !publishes && (contract(&published), reserved(&published)) != (contract(&present), reserved(&present)) {
        return Err(
            "pods.proto has additions: publish them with SEGUE_PUBLISH_PROTO=1 cargo test --workspace --test grpc \
                    compatibility"
                .to_owned(),
        );
    }
    Ok(())
}

#[test]
fn the_present_proto_is_compatible_with_the_published_one_and_published_itself() {
    let present = segue_pods_proto::DESCRIPTORS;
    let publishes = std::env::var_os("SEGUE_PUBLISH_PROTO").is_some();
    check(std::fs::read(published()), present, publishes).unwrap_or_else(|problem| panic!("{problem}"));
    if publishes {
        std::fs::write(published(), present).unwrap();
        std::fs::write(of_python(), present).unwrap();
    }
    let is_copied = std::fs::read(published()).unwrap() == std::fs::read(of_python()).unwrap();
    assert!(is_copied, "{} is not the published descriptor set: copy that", of_python().display());
}

#[test]
fn the_committed_code_is_what_the_proto_compiles_to() {
    let present = segue_pods_proto::CODE;
    if std::env::var_os("SEGUE_PUBLISH_PROTO").is_some() {
        std::fs::write(committed("segue.v1.rs"), present).unwrap();
    }
    let is_current = std::fs::read_to_string(committed("segue.v1.rs")).unwrap() == present;
    assert!(
        is_current,
        "make segue.v1.rs anew: SEGUE_PUBLISH_PROTO=1 cargo test --workspace --test grpc compatibility"
    );
}

#[test]
fn without_the_published_proto_the_check_fails_unless_it_is_about_to_be_published() {
    let present = segue_pods_proto::DESCRIPTORS;
    let missing = || Err(io::ErrorKind::NotFound.into());
    let problem = check(missing(), present, false).unwrap_err();
    assert!(problem.starts_with("the published pods.binpb cannot be read: "), "{problem}");
    assert_eq!(check(missing(), present, true), Ok(()));
    // A file that exists is compared, whatever the variable says.
    assert!(check(Err(io::ErrorKind::PermissionDenied.into()), present, true).is_err());
}

#[test]
fn a_changed_number_type_or_name_a_removed_call_and_what_is_not_reserved_any_more_are_found() {
    let mut set = parse(segue_pods_proto::DESCRIPTORS);
    let file = set.file.iter_mut().find(|file| file.package() == "segue.v1").unwrap();
    let hello = file.message_type.iter().position(|message| message.name() == "Hello").unwrap();
    file.message_type[hello].reserved_name.push("labels".to_owned());
    file.enum_type[0].reserved_range = vec![EnumReservedRange { start: Some(7), end: Some(9) }];
    let set = set;
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
    assert_eq!(changed(&|file| file.message_type[hello].reserved_name.clear()).len(), 1);
    assert_eq!(changed(&|file| file.enum_type[0].reserved_range.clear()).len(), 1);
    let ranges = |ranges: &[(i32, i32)]| {
        let range = |&(start, end): &(i32, i32)| ReservedRange { start: Some(start), end: Some(end) };
        let ranges: Vec<_> = ranges.iter().map(range).collect();
        changed(&|file| file.message_type[hello].reserved_range.clone_from(&ranges))
    };
    let freed = |number: i32| vec![format!("reserved Hello = {number}: is not reserved any more")];
    assert_eq!(ranges(&[(14, 31)]), freed(11));
    assert_eq!(ranges(&[(11, 12), (15, 31)]), freed(14));
    assert_eq!(ranges(&[(14, 20), (11, 12), (21, 31)]), freed(20));
    assert_eq!(ranges(&[(11, 12), (14, 30)]), freed(30));
    // The same numbers in other ranges, and more of them.
    assert!(ranges(&[(20, 40), (11, 12), (14, 20)]).is_empty());
    // An addition breaks nobody.
    let field = prost_types::FieldDescriptorProto { number: Some(500), ..Default::default() };
    assert!(changed(&|file| file.message_type[0].field.push(field.clone())).is_empty());
}
