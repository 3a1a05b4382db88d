//! JSON files read with every fault at once, each under its path: `jobs[3].worker.cpus`.

use std::fmt;

use model::Fault;
use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
pub(super) use simulator::words::whole as exact;

use super::file::Source;
use crate::failure::{Failure, Located};
use crate::text::{distance, nearest};

/// Faults told of one file; the rest are counted.
pub(super) const FAULTS_MAX: usize = 20;
/// Known fields that are listed where another was given.
const SHOWN_MAX: usize = 8;

/// A JSON value that keeps the order of its fields, and a field that comes twice.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Json {
    Null,
    Bool(bool),
    Whole(u64),
    /// Negative, with a fraction, or past 2^64.
    Number(f64),
    Text(String),
    List(Vec<Json>),
    Object(Vec<(String, Json)>),
}

impl Json {
    const fn what(&self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Bool(_) => "true or false",
            Self::Whole(_) | Self::Number(_) => "a number",
            Self::Text(_) => "a text",
            Self::List(_) => "a list",
            Self::Object(_) => "an object",
        }
    }

    /// The same as another library's value; of a field that comes twice the last counts.
    pub(super) fn value(&self) -> serde_json::Value {
        use serde_json::Value;
        match self {
            Self::Null => Value::Null,
            Self::Bool(bool) => Value::Bool(*bool),
            Self::Whole(number) => Value::from(*number),
            Self::Number(number) => Value::from(*number),
            Self::Text(text) => Value::String(text.clone()),
            Self::List(list) => list.iter().map(Self::value).collect(),
            Self::Object(fields) => {
                fields.iter().map(|(name, field)| (name.clone(), field.value())).collect()
            }
        }
    }
}

struct Builder;

impl<'de> Visitor<'de> for Builder {
    type Value = Json;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Json, E> {
        Ok(Json::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Json, E> {
        Ok(Json::Bool(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Json, E> {
        Ok(Json::Whole(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Json, E> {
        // Only negative numbers come here; nothing takes them, so their last digits are no loss.
        Ok(Json::Number(value as f64))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Json, E> {
        Ok(Json::Number(value))
    }

    fn visit_str<E>(self, value: &str) -> Result<Json, E> {
        Ok(Json::Text(value.to_owned()))
    }

    fn visit_string<E>(self, value: String) -> Result<Json, E> {
        Ok(Json::Text(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut parts: A) -> Result<Json, A::Error> {
        let mut list = Vec::new();
        while let Some(part) = parts.next_element()? {
            list.push(part);
        }
        Ok(Json::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut parts: A) -> Result<Json, A::Error> {
        let mut fields = Vec::new();
        while let Some(field) = parts.next_entry()? {
            fields.push(field);
        }
        Ok(Json::Object(fields))
    }
}

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Builder)
    }
}

/// Reads a file's one JSON document.
///
/// # Errors
/// Where it is not JSON, with the line.
pub(super) fn parse(source: &Source) -> Result<Json, Failure> {
    serde_json::from_str(&source.text).map_err(|error| {
        let problem = format!("is not JSON: {error}");
        let fault = Fault::new("file", problem, "correct it; JSON knows no NaN and no comments");
        Failure::faulty(&source.name, vec![Located { line: Some(error.line()), fault }])
    })
}

/// Where a value stands in its file.
#[derive(Clone, Copy, Debug)]
pub(super) enum At<'a> {
    Top,
    Field(&'a At<'a>, &'a str),
    Item(&'a At<'a>, usize),
}

impl<'a> At<'a> {
    pub(super) const fn field(&'a self, name: &'a str) -> Self {
        Self::Field(self, name)
    }

    pub(super) const fn item(&'a self, index: usize) -> Self {
        Self::Item(self, index)
    }
}

impl fmt::Display for At<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Top => f.write_str("file"),
            Self::Field(Self::Top, name) => f.write_str(name),
            Self::Field(parent, name) => write!(f, "{parent}.{name}"),
            Self::Item(parent, index) => write!(f, "{parent}[{index}]"),
        }
    }
}

/// What is wrong with a file.
#[derive(Debug, Default)]
pub(super) struct Faults {
    told: Vec<Fault>,
    count: usize,
}

impl Faults {
    pub(super) fn add(
        &mut self,
        at: &At<'_>,
        problem: impl Into<String>,
        remedy: impl Into<String>,
    ) {
        self.count += 1;
        if self.told.len() < FAULTS_MAX {
            self.told.push(Fault::new(at.to_string(), problem, remedy));
        }
    }

    fn wrong(&mut self, at: &At<'_>, json: &Json, remedy: &str) {
        self.add(at, format!("is {}", json.what()), remedy);
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// All of them as one failure of the file.
    ///
    /// # Errors
    /// Where there are any.
    pub(super) fn none(self, source: &Source) -> Result<(), Failure> {
        if self.is_empty() {
            return Ok(());
        }
        let located = self.told.into_iter().map(|fault| Located { line: None, fault }).collect();
        let mut failure = Failure::faulty(&source.name, located);
        if self.count > FAULTS_MAX {
            let (name, count) = (&source.name, self.count);
            failure.message = format!("{name} has {count} faults, the first {FAULTS_MAX} are");
        }
        Err(failure)
    }

    /// The items of a list.
    pub(super) fn list<'a>(&mut self, json: &'a Json, at: &At<'_>) -> &'a [Json] {
        if let Json::List(list) = json {
            return list;
        }
        self.wrong(at, json, "write a list: [ … ]");
        &[]
    }

    /// The fields of an object whose names are all known and come once.
    pub(super) fn object<'j, 'a>(
        &mut self,
        json: &'j Json,
        at: &'a At<'a>,
        known: &[&str],
    ) -> Option<Fields<'j, 'a>> {
        let fields = self.any_object(json, at)?;
        for (name, _) in fields.all {
            if !known.contains(&name.as_str()) {
                let remedy = match near(name, known) {
                    Some(near) => format!("did you mean {near}?"),
                    None if known.len() <= SHOWN_MAX => format!("known are {}", known.join(", ")),
                    None => "remove it".to_owned(),
                };
                self.add(&at.field(name), "is not a known field", remedy);
            }
        }
        Some(fields)
    }

    /// The fields of an object with names of any kind that come once.
    pub(super) fn any_object<'j, 'a>(
        &mut self,
        json: &'j Json,
        at: &'a At<'a>,
    ) -> Option<Fields<'j, 'a>> {
        let Json::Object(all) = json else {
            self.wrong(at, json, "write an object: { … }");
            return None;
        };
        let mut names: Vec<&str> = all.iter().map(|(name, _)| name.as_str()).collect();
        names.sort_unstable();
        for pair in names.windows(2).filter(|pair| pair[0] == pair[1]) {
            self.add(&at.field(pair[0]), "comes twice", "keep one");
        }
        Some(Fields { at, all })
    }

    /// A whole number in a range.
    pub(super) fn whole(
        &mut self,
        json: &Json,
        at: &At<'_>,
        (low, high): (u64, u64),
    ) -> Option<u64> {
        let value = match json {
            Json::Whole(value) => Some(*value),
            Json::Number(value) => exact(*value),
            Json::Null | Json::Bool(_) | Json::Text(_) | Json::List(_) | Json::Object(_) => {
                self.wrong(at, json, "write a whole number without quotes");
                return None;
            }
        };
        let inside = value.filter(|value| (low..=high).contains(value));
        if inside.is_none() {
            let remedy = if high == u64::MAX {
                format!("give a whole number of at least {low}, below 2^64")
            } else {
                format!("give a whole number in {low} to {high}")
            };
            self.add(at, format!("is {}", shown(json)), remedy);
        }
        inside
    }

    /// A number that `fits`, of which `wanted` tells what it must be.
    pub(super) fn number(
        &mut self,
        json: &Json,
        at: &At<'_>,
        wanted: &str,
        fits: impl Fn(f64) -> bool,
    ) -> Option<f64> {
        let value = match json {
            Json::Whole(value) => *value as f64,
            Json::Number(value) => *value,
            Json::Null | Json::Bool(_) | Json::Text(_) | Json::List(_) | Json::Object(_) => {
                self.wrong(at, json, &format!("write {wanted} without quotes"));
                return None;
            }
        };
        if value.is_finite() && fits(value) {
            return Some(value);
        }
        self.add(at, format!("is {}", shown(json)), format!("give {wanted}"));
        None
    }

    /// A text.
    pub(super) fn text<'a>(&mut self, json: &'a Json, at: &At<'_>) -> Option<&'a str> {
        if let Json::Text(text) = json {
            return Some(text);
        }
        self.wrong(at, json, "write a text in quotes");
        None
    }
}

/// The field that was meant: near as elsewhere, or with two letters turned.
fn near<'a>(name: &str, known: &[&'a str]) -> Option<&'a str> {
    let close = |field: &&str| distance(name, field) <= 2 && field.len() > 3;
    nearest(name, known.iter().copied()).or_else(|| known.iter().copied().find(close))
}

/// A number as the file has it, or near it.
fn shown(json: &Json) -> String {
    match json {
        Json::Whole(value) => value.to_string(),
        Json::Number(value) if value.abs() < 1e15 => value.to_string(),
        Json::Number(value) => format!("{value:e}"),
        Json::Null | Json::Bool(_) | Json::Text(_) | Json::List(_) | Json::Object(_) => {
            json.what().to_owned()
        }
    }
}

/// An object's fields; one that is null counts as left out.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fields<'j, 'a> {
    pub at: &'a At<'a>,
    pub all: &'j [(String, Json)],
}

impl<'j> Fields<'j, '_> {
    pub(super) fn find(&self, name: &str) -> Option<&'j Json> {
        let found = self.all.iter().find(|(field, _)| field == name).map(|(_, json)| json);
        found.filter(|json| !matches!(json, Json::Null))
    }

    pub(super) fn need(&self, name: &str, faults: &mut Faults) -> Option<&'j Json> {
        let found = self.find(name);
        if found.is_none() {
            faults.add(&self.at.field(name), "is missing", "give it");
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(text: &str) -> Source {
        Source { name: "x.json".to_owned(), text: text.to_owned() }
    }

    #[test]
    fn what_is_no_json_has_its_line() {
        for text in ["", "{", "{\"a\": NaN}", "{}\n{}", "[1e999]", "// x\n{}"] {
            let failure = parse(&source(text)).expect_err(text);
            assert_eq!(failure.exit.code(), 2);
            assert!(failure.faults[0].line.is_some(), "{text}: {failure}");
        }
        let deep = "[".repeat(100_000);
        assert!(parse(&source(&deep)).is_err(), "depth has a bound");
    }

    #[test]
    fn faults_carry_their_paths_and_are_bounded() {
        let json = parse(&source(r#"{"a": [{"b": 1, "b": 2, "c": -1}]}"#)).unwrap();
        let mut faults = Faults::default();
        let top = At::Top;
        let fields = faults.object(&json, &top, &["a"]).unwrap();
        let list_at = top.field("a");
        let item_at = list_at.item(0);
        let item = &faults.list(fields.find("a").unwrap(), &list_at)[0];
        let item = faults.object(item, &item_at, &["b"]).unwrap();
        item.need("d", &mut faults);
        faults.whole(item.find("c").unwrap(), &item_at.field("c"), (0, 5));
        let words: Vec<String> = faults.told.iter().map(|fault| fault.field.clone()).collect();
        assert_eq!(words, ["a[0].b", "a[0].c", "a[0].d", "a[0].c"]);
        for _ in 0..50 {
            faults.add(&top, "x", "y");
        }
        let failure = faults.none(&source("")).expect_err("faults");
        assert_eq!(failure.faults.len(), FAULTS_MAX);
        assert!(failure.message.contains("54 faults"), "{failure}");
    }

    #[test]
    fn whole_numbers_are_exact_or_refused() {
        let mut faults = Faults::default();
        let mut whole = |text: &str| {
            let json = parse(&source(text)).unwrap();
            faults.whole(&json, &At::Top, (0, u64::MAX))
        };
        assert_eq!(whole("48000000000.0"), Some(48_000_000_000));
        assert_eq!(whole("18446744073709551615"), Some(u64::MAX));
        for text in ["1.5", "-1", "-0.5", "18446744073709551616", "1e308", "\"1\"", "true"] {
            assert_eq!(whole(text), None, "{text}");
        }
    }
}
