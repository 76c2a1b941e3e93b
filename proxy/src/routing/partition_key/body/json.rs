//! The members of a JSON object that are the parts of a key. No tree is built.
//!
//! Pure.
//!
//! # Invariants
//!
//! * A member that occurs twice, or beside one whose name differs in case alone, is refused: parsers differ in which one counts.
//! * A number is a key only as a whole number in the one way to write it.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

use super::super::decoding::LocationError;
use super::field_path::{FieldPath, MemberName};

/// Returns the values of the members at these paths, in their order, as text. `None`: it is not there, or null.
pub(super) fn find(paths: &[FieldPath<MemberName>], body: &[u8]) -> Result<Vec<Option<Vec<u8>>>, LocationError> {
    let mut search = Search { paths, found: vec![None; paths.len()], fault: None };
    let mut parser = serde_json::Deserializer::from_slice(body);
    let root = Node { search: &mut search, depth: 0, led_by: u8::MAX >> (8 - paths.len()) };
    match root.deserialize(&mut parser).and_then(|()| parser.end()) {
        Ok(()) => Ok(search.found),
        Err(_) => Err(search.fault.unwrap_or(LocationError::Unreadable)),
    }
}

/// Returns an object with these strings at the paths.
pub(super) fn write(paths: &[FieldPath<MemberName>], parts: &[&str]) -> Vec<u8> {
    let mut root = Map::new();
    for (path, part) in paths.iter().zip(parts) {
        let (last, way) = path.split_last();
        let mut object = &mut root;
        for step in way {
            let within = object.entry(step.as_str()).or_insert_with(|| Value::Object(Map::new()));
            // No path leads through the member of another one.
            let Value::Object(within) = within else { unreachable!("a path through {within}") };
            object = within;
        }
        object.insert(last.as_str().to_owned(), Value::from(*part));
    }
    Value::Object(root).to_string().into_bytes()
}

struct Search<'a> {
    paths: &'a [FieldPath<MemberName>],
    found: Vec<Option<Vec<u8>>>,
    /// Why the body is refused, where that is not its syntax.
    fault: Option<LocationError>,
}

impl Search<'_> {
    fn refuse<E: serde::de::Error>(&mut self, why: LocationError) -> E {
        self.fault = Some(why);
        E::custom("refused")
    }
}

/// A value to which some of the paths lead.
struct Node<'s, 'a> {
    search: &'s mut Search<'a>,
    /// How many steps lead to it.
    depth: usize,
    /// A bit for each path whose steps so far lead to it.
    led_by: u8,
}

impl Node<'_, '_> {
    /// Returns the number of the path that ends here. It is the only one then.
    fn part(&self) -> Option<usize> {
        let part = self.led_by.trailing_zeros() as usize;
        self.search.paths.get(part).filter(|path| path.len() == self.depth).map(|_| part)
    }

    /// Takes a value that is not an object.
    fn take<E: serde::de::Error>(self, text: &[u8]) -> Result<(), E> {
        match self.part() {
            // Some languages end a text at a NUL.
            Some(part) if !text.contains(&0) => {
                self.search.found[part] = Some(text.to_vec());
                Ok(())
            }
            _ => self.refuse(),
        }
    }

    /// Refuses a value of a kind that cannot stand here.
    fn refuse<E: serde::de::Error>(self) -> Result<(), E> {
        let why = if self.depth == 0 { LocationError::Unreadable } else { LocationError::Unclear };
        Err(self.search.refuse(why))
    }
}

impl<'de> DeserializeSeed<'de> for Node<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, value: D) -> Result<(), D::Error> {
        value.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Node<'_, '_> {
    type Value = ();

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("a value")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut members: M) -> Result<(), M::Error> {
        if self.part().is_some() {
            return self.refuse();
        }
        let Node { search, depth, led_by } = self;
        let mut seen = 0;
        while let Some(name) = members.next_key_seed(NameSeed { paths: search.paths, depth, led_by })? {
            if name.is_similar || name.leads & seen != 0 {
                return Err(search.refuse(LocationError::Unclear));
            }
            seen |= name.leads;
            if name.leads == 0 {
                members.next_value::<IgnoredAny>()?;
            } else {
                members.next_value_seed(Node { search: &mut *search, depth: depth + 1, led_by: name.leads })?;
            }
        }
        Ok(())
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<(), E> {
        self.take(text.as_bytes())
    }

    fn visit_u64<E: serde::de::Error>(self, number: u64) -> Result<(), E> {
        self.take(number.to_string().as_bytes())
    }

    fn visit_i64<E: serde::de::Error>(self, number: i64) -> Result<(), E> {
        self.take(number.to_string().as_bytes())
    }

    /// A number with a point or an exponent, a negative zero, or one of more than 64 bits.
    fn visit_f64<E: serde::de::Error>(self, _: f64) -> Result<(), E> {
        self.refuse()
    }

    fn visit_bool<E: serde::de::Error>(self, _: bool) -> Result<(), E> {
        self.refuse()
    }

    fn visit_unit<E: serde::de::Error>(self) -> Result<(), E> {
        if self.depth == 0 { self.refuse() } else { Ok(()) }
    }

    fn visit_seq<S: SeqAccess<'de>>(self, _: S) -> Result<(), S::Error> {
        self.refuse()
    }
}

/// Reads the name of a member.
struct NameSeed<'a> {
    paths: &'a [FieldPath<MemberName>],
    depth: usize,
    led_by: u8,
}

/// The meaning of a member's name for the paths.
struct Name {
    /// A bit for each path whose next step it is.
    leads: u8,
    /// Whether it is the next step of a path for some parsers only.
    is_similar: bool,
}

impl<'de> DeserializeSeed<'de> for NameSeed<'_> {
    type Value = Name;

    fn deserialize<D: Deserializer<'de>>(self, name: D) -> Result<Name, D::Error> {
        name.deserialize_str(self)
    }
}

impl<'de> Visitor<'de> for NameSeed<'_> {
    type Value = Name;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("a name")
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Name, E> {
        let mut name = Name { leads: 0, is_similar: false };
        for (number, path) in self.paths.iter().enumerate().filter(|(number, _)| self.led_by >> number & 1 == 1) {
            let step = path.step(self.depth).as_str();
            if text == step {
                name.leads |= 1 << number;
            } else {
                name.is_similar |= is_similar(text, step);
            }
        }
        Ok(name)
    }
}

/// Returns whether some parsers take one name for the other: they ignore its case, or end it at a NUL.
fn is_similar(name: &str, step: &str) -> bool {
    let folded =
        |text: &str| text.chars().flat_map(char::to_uppercase).flat_map(char::to_lowercase).collect::<String>();
    let name = name.split('\0').next().unwrap_or_default();
    let lengths = (name.chars().count(), step.chars().count());
    // No letter becomes more than three by its case.
    lengths.0 <= 3 * lengths.1 && lengths.1 <= 3 * lengths.0 && folded(name) == folded(step)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(body: &str) -> Result<Option<String>, LocationError> {
        let found = find(&["person.id".parse().unwrap()], body.as_bytes())?;
        let [part] = <[_; 1]>::try_from(found).unwrap();
        Ok(part.map(|part| String::from_utf8(part).unwrap()))
    }

    #[test]
    fn text_and_whole_numbers_are_keys() {
        for (value, key) in [
            ("\"anna\"", "anna"),
            ("\"\\u0061\\u00e9\\ud83d\\ude00\"", "a\u{e9}\u{1f600}"),
            ("\"7\"", "7"),
            ("7", "7"),
            ("-7", "-7"),
            ("0", "0"),
            ("18446744073709551615", "18446744073709551615"),
            ("-9223372036854775808", "-9223372036854775808"),
            ("\"\"", ""),
        ] {
            for body in [
                format!("{{\"person\":{{\"id\":{value}}}}}"),
                format!(" {{\"x\":[1,{{\"person\":2}}],\"person\" : {{\"a\":{{\"id\":1}},\"\\u0069d\":{value}}}}}\n"),
            ] {
                assert_eq!(id(&body), Ok(Some(key.to_owned())), "{body}");
            }
        }
    }

    #[test]
    fn a_member_that_is_not_there_or_null_is_no_key() {
        for body in
            ["{}", "{\"id\":7}", "{\"person\":{}}", "{\"person\":null}", "{\"person\":{\"id\":null,\"x\":{\"id\":1}}}"]
        {
            assert_eq!(id(body), Ok(None), "{body}");
        }
    }

    #[test]
    fn a_value_that_is_read_in_several_ways_is_refused() {
        for value in
            ["1.0", "1e3", "-0", "18446744073709551616", "true", "false", "[7]", "{}", "{\"id\":7}", "\"a\\u0000b\""]
        {
            let body = format!("{{\"person\":{{\"id\":{value}}}}}");
            assert_eq!(id(&body), Err(LocationError::Unclear), "{body}");
        }
        for person in ["7", "\"x\"", "[{\"id\":7}]", "true", "1.5"] {
            assert_eq!(id(&format!("{{\"person\":{person}}}")), Err(LocationError::Unclear), "{person}");
        }
    }

    #[test]
    fn a_member_that_occurs_twice_or_nearly_is_refused() {
        for body in [
            r#"{"person":{"id":7,"id":7}}"#,
            r#"{"person":{"id":7,"\u0069d":8}}"#,
            r#"{"person":{"id":7},"person":null}"#,
            r#"{"person":{"id":7,"ID":8}}"#,
            r#"{"person":{"Id":7}}"#,
            r#"{"perſon":{"id":7}}"#,
            r#"{"PERSON":1,"person":{"id":7}}"#,
            r#"{"person":{"id\u0000x":7}}"#,
        ] {
            assert_eq!(id(body), Err(LocationError::Unclear), "{body}");
        }
        // Elsewhere names are nobody's concern.
        let body = r#"{"a":1,"a":2,"ID":3,"person":{"id":7,"a":{"id":1,"id":2}}}"#;
        assert_eq!(id(body), Ok(Some("7".to_owned())));
    }

    #[test]
    fn what_is_no_object_as_the_rfc_has_it_is_unreadable() {
        for body in [
            "[]",
            "[{\"person\":{\"id\":7}}]",
            "7",
            "null",
            "\"x\"",
            "{",
            "{\"person\":{\"id\":7}",
            "{\"person\":{\"id\":7}} x",
            "{\"person\":{\"id\":7}}{\"person\":{\"id\":8}}",
            "{\"person\":{\"id\":7,}}",
            "{'person':{}}",
            "// x\n{}",
            "{\"person\":{\"id\":07}}",
            "\u{feff}{}",
            "{\"person\":{\"id\":\"\\ud800\"}}",
        ] {
            assert_eq!(id(body), Err(LocationError::Unreadable), "{body}");
        }
        let utf16: Vec<u8> = "{}".encode_utf16().flat_map(u16::to_le_bytes).collect();
        let paths = ["id".parse().unwrap()];
        assert_eq!(find(&paths, &utf16), Err(LocationError::Unreadable));
        assert_eq!(find(&paths, b"{\"id\":\"\xff\"}"), Err(LocationError::Unreadable));
    }

    #[test]
    fn however_deep_a_body_is_its_search_is_not() {
        let deep = format!("{{\"x\":{}{},\"person\":{{\"id\":7}}}}", "[".repeat(30_000), "]".repeat(30_000));
        assert_eq!(id(&deep), Ok(Some("7".to_owned())));
    }
}
