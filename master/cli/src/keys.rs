//! Reads a TOML file against a list of known keys and finds everything wrong at once: syntax,
//! unknown keys, wrong types and missing ones, each with its line and a remedy.

use std::collections::{BTreeMap, BTreeSet};

use model::Fault;
use model::units::{DurationMs, parse_bytes};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::failure::Located;
use crate::text::nearest;

/// What a key holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Want {
    Text,
    /// A list of texts.
    Texts,
    /// One of these words.
    Word(&'static [&'static str]),
    /// A whole number from 0 to this.
    Integer(u64),
    Decimal,
    /// Text with a unit.
    Duration,
    /// Text with a unit.
    Size,
    /// Texts under names that the user chooses.
    FreeTexts,
    /// Whole numbers under names that the user chooses.
    FreeIntegers,
    /// Two port numbers.
    Ports,
    /// `true` or `false`.
    Truth,
    /// A list of whole numbers from 0 to this.
    Integers(u64),
}

/// One known key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key {
    pub path: &'static str,
    pub want: Want,
    pub required: bool,
}

impl Key {
    pub(crate) const fn optional(path: &'static str, want: Want) -> Self {
        Self { path, want, required: false }
    }

    pub(crate) const fn required(path: &'static str, want: Want) -> Self {
        Self { path, want, required: true }
    }
}

/// A value of the right type.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value {
    Text(String),
    Texts(Vec<String>),
    Integer(u64),
    Decimal(f64),
    /// Milliseconds.
    Duration(u64),
    Bytes(u64),
    FreeTexts(BTreeMap<String, String>),
    FreeIntegers(BTreeMap<String, u64>),
    Ports(u16, u16),
    Truth(bool),
    Integers(Vec<u64>),
}

/// What a file holds, as far as it is right, and what is wrong.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Document {
    pub values: BTreeMap<String, Value>,
    lines: BTreeMap<String, usize>,
    pub faults: Vec<Located>,
    /// The file does not even parse: what seems missing may only stand behind the error.
    pub broken: bool,
}

impl Document {
    /// Reads `text`; never fails, `faults` tells.
    #[must_use]
    pub(crate) fn read(text: &str, keys: &[Key]) -> Self {
        let mut document = Self::default();
        let (root, errors) = DeTable::parse_recoverable(text);
        let lines = Lines::of(text);
        for error in &errors {
            document.broken = true;
            document.faults.push(Located {
                line: error.span().map(|span| lines.at(span.start)),
                fault: Fault::new("syntax", error.message(), "correct the line"),
            });
        }
        let mut walk = Walk { document: &mut document, keys, lines: &lines };
        walk.table(root.get_ref(), "");
        if !document.broken {
            document.find_missing(keys);
        }
        document
    }

    fn find_missing(&mut self, keys: &[Key]) {
        let missing = keys.iter().filter(|key| key.required && !self.has(key.path));
        let faults: Vec<Located> = missing
            .map(|key| {
                let remedy = format!("add {}", example(key.path, key.want));
                Located { line: None, fault: Fault::new(key.path, "is missing", remedy) }
            })
            .collect();
        self.faults.extend(faults);
    }

    /// True where the file names the key or anything below it, rightly or wrongly.
    #[must_use]
    pub(crate) fn has(&self, path: &str) -> bool {
        self.line(path).is_some()
    }

    /// The line of a key, or of the first key below it.
    #[must_use]
    pub(crate) fn line(&self, path: &str) -> Option<usize> {
        let below = format!("{path}.");
        let own = self.lines.get(path).copied();
        own.or_else(|| {
            let inside = self.lines.iter().filter(|(key, _)| key.starts_with(&below));
            inside.map(|(_, line)| *line).min()
        })
    }

    /// Adds a fault of a value that reads well but is wrong; not where one of `before` has the
    /// same field, or something above or below it: that one may be the cause.
    pub(crate) fn add_unless(&mut self, before: &[Located], fault: Fault) {
        let within = |inner: &str, outer: &str| {
            inner.strip_prefix(outer).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        let field = fault.field.as_str();
        let covered = |located: &Located| {
            within(&located.fault.field, field) || within(field, &located.fault.field)
        };
        if before.iter().any(covered) {
            return;
        }
        let section = field.rsplit_once('.').map(|(section, _)| section);
        let line = self.line(field).or_else(|| section.and_then(|section| self.line(section)));
        self.faults.push(Located { line, fault });
    }

    /// The faults in the order of the file; those without a line last.
    #[must_use]
    pub(crate) fn sorted(mut self) -> Vec<Located> {
        self.faults.sort_by_key(|located| (located.line.is_none(), located.line));
        self.faults
    }
}

/// Byte offsets to line numbers from 1.
struct Lines(Vec<usize>);

impl Lines {
    fn of(text: &str) -> Self {
        Self(text.match_indices('\n').map(|(at, _)| at).collect())
    }

    fn at(&self, offset: usize) -> usize {
        1 + self.0.partition_point(|end| *end < offset)
    }
}

struct Walk<'a> {
    document: &'a mut Document,
    keys: &'a [Key],
    lines: &'a Lines,
}

impl Walk<'_> {
    fn table(&mut self, table: &DeTable<'_>, prefix: &str) {
        for (name, value) in table {
            let path = format!("{prefix}{}", name.get_ref());
            let line = self.lines.at(name.span().start);
            if let Some(key) = self.keys.iter().find(|key| key.path == path) {
                self.document.lines.insert(path.clone(), line);
                match convert(value, key.want) {
                    Ok(value) => {
                        self.document.values.insert(path, value);
                    }
                    Err(wrongs) => wrongs.into_iter().for_each(|wrong| {
                        let field = format!("{path}{}", wrong.below);
                        let line = wrong.offset.map_or(line, |offset| self.lines.at(offset));
                        self.fault(line, Fault::new(field, wrong.problem, wrong.remedy));
                    }),
                }
                continue;
            }
            let below = format!("{path}.");
            if self.keys.iter().any(|key| key.path.starts_with(&below)) {
                self.document.lines.insert(path.clone(), line);
                match value.get_ref().as_table() {
                    Some(inner) => self.table(inner, &below),
                    None => {
                        let found = kind(value.get_ref());
                        let fault = Fault::new(
                            path.as_str(),
                            format!("is {found}, not a table"),
                            format!("write [{path}] with {} below it", self.known(&below)),
                        );
                        self.fault(line, fault);
                    }
                }
                continue;
            }
            let near = self.near(prefix, name.get_ref());
            let remedy = match &near {
                Some(near) => format!("did you mean {near}?"),
                None => format!("remove it; known here: {}", self.known(prefix)),
            };
            self.fault(line, Fault::new(path, "is not a known key", remedy));
            // What was meant is not missing too.
            let Some(near) = near else { continue };
            if let Some(inner) = value.get_ref().as_table() {
                self.table(inner, &format!("{near}."));
            }
            self.document.lines.entry(near).or_insert(line);
        }
    }

    fn fault(&mut self, line: usize, fault: Fault) {
        self.document.faults.push(Located { line: Some(line), fault });
    }

    /// Names directly below a prefix.
    fn names(&self, prefix: &str) -> BTreeSet<&'static str> {
        let inside = self.keys.iter().filter_map(|key| key.path.strip_prefix(prefix));
        inside.filter_map(|rest| rest.split('.').next()).collect()
    }

    fn known(&self, prefix: &str) -> String {
        self.names(prefix).into_iter().collect::<Vec<_>>().join(", ")
    }

    /// The known path that an unknown name most likely stands for.
    fn near(&self, prefix: &str, name: &str) -> Option<String> {
        let path = |key: &Key| key.path.to_owned();
        let joined = self.keys.iter().find(|key| key.path.replace('.', "_") == name);
        let near = || nearest(name, self.names(prefix)).map(|near| format!("{prefix}{near}"));
        let elsewhere = || self.keys.iter().find(|key| key.path.rsplit('.').next() == Some(name));
        joined.map(path).or_else(near).or_else(|| elsewhere().map(path))
    }
}

/// Why a value does not fit.
struct Wrong {
    /// What is appended to the key's path.
    below: String,
    offset: Option<usize>,
    problem: String,
    remedy: String,
}

fn wrong(problem: impl Into<String>, remedy: impl Into<String>) -> Vec<Wrong> {
    let (problem, remedy) = (problem.into(), remedy.into());
    vec![Wrong { below: String::new(), offset: None, problem, remedy }]
}

const fn kind(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "a text",
        DeValue::Integer(_) => "a number",
        DeValue::Float(_) => "a decimal number",
        DeValue::Boolean(_) => "true or false",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a table",
    }
}

/// A line of a file that would be right.
fn example(path: &str, want: Want) -> String {
    let (section, name) = path.rsplit_once('.').unwrap_or(("", path));
    let place = if section.is_empty() { String::new() } else { format!(" below [{section}]") };
    let value = match want {
        Want::Text if name == "checkpoint" => "\"file:///srv/checkpoints\"".to_owned(),
        Want::Text => "\"…\"".to_owned(),
        Want::Texts => "[\"python3\", \"train.py\"]".to_owned(),
        Want::Word(words) => format!("\"{}\"", words.join("\" or \"")),
        Want::Integer(_) => "10".to_owned(),
        Want::Decimal => "1.0".to_owned(),
        Want::Duration => "\"10m\"".to_owned(),
        Want::Size => "\"512MiB\"".to_owned(),
        Want::FreeTexts => "{ KEY = \"value\" }".to_owned(),
        Want::FreeIntegers => "{ licence = 1 }".to_owned(),
        Want::Ports => "[21000, 29999]".to_owned(),
        Want::Truth => "true".to_owned(),
        Want::Integers(_) => "[31, 79]".to_owned(),
    };
    format!("{name} = {value}{place}")
}

/// The text of an integer or a float as the file has it.
fn digits(value: &DeValue<'_>) -> Option<String> {
    match value {
        DeValue::Integer(number) => Some(number.to_string()),
        DeValue::Float(number) => Some(number.to_string()),
        DeValue::String(_)
        | DeValue::Boolean(_)
        | DeValue::Datetime(_)
        | DeValue::Array(_)
        | DeValue::Table(_) => None,
    }
}

fn convert(value: &Spanned<DeValue<'_>>, want: Want) -> Result<Value, Vec<Wrong>> {
    let inner = value.get_ref();
    let text = inner.as_str();
    let mismatch = |expected: &str, remedy: String| {
        wrong(format!("is {}, not {expected}", kind(inner)), remedy)
    };
    match want {
        Want::Text => text
            .map(|text| Value::Text(text.to_owned()))
            .ok_or_else(|| mismatch("a text", "put it in quotes".to_owned())),
        Want::Word(words) => match text {
            Some(text) if words.contains(&text) => Ok(Value::Text(text.to_owned())),
            Some(text) => {
                let list = format!("write \"{}\"", words.join("\" or \""));
                let meant = nearest(text, words.iter().copied());
                let remedy = meant.map_or(list, |near| format!("did you mean \"{near}\"?"));
                Err(wrong(format!("{text:?} is not known"), remedy))
            }
            None => Err(mismatch("a text", format!("write \"{}\"", words.join("\" or \"")))),
        },
        Want::Texts => texts(inner),
        Want::Truth => inner
            .as_bool()
            .map(Value::Truth)
            .ok_or_else(|| mismatch("true or false", "write true, without quotes".to_owned())),
        Want::Integer(max) => integer(inner, max).map(Value::Integer),
        Want::Decimal => decimal(inner),
        Want::Duration => match (text, digits(inner)) {
            (Some(text), _) => text
                .parse::<DurationMs>()
                .map(|duration| Value::Duration(duration.0))
                .map_err(|error| split(&error.to_string())),
            (None, Some(number)) => Err(wrong(
                format!("{number} has no unit"),
                format!("write \"{number}s\", \"{number}m\" or \"{number}h\""),
            )),
            (None, None) => Err(mismatch("a duration", "write such as \"10m\"".to_owned())),
        },
        Want::Size => match (text, digits(inner)) {
            (Some(text), _) => {
                parse_bytes(text).map(Value::Bytes).map_err(|error| split(&error.to_string()))
            }
            (None, Some(number)) => Err(wrong(
                format!("{number} has no unit"),
                format!("write \"{number}MiB\", \"{number}GiB\" or \"{number}B\""),
            )),
            (None, None) => Err(mismatch("a size", "write such as \"512MiB\"".to_owned())),
        },
        Want::FreeTexts => free(inner, |value| match value.as_str() {
            Some(text) => Ok(text.to_owned()),
            None => {
                Err(wrong(format!("is {}, not a text", kind(value)), "put the value in quotes"))
            }
        })
        .map(Value::FreeTexts),
        Want::FreeIntegers => {
            free(inner, |value| integer(value, u64::MAX >> 1)).map(Value::FreeIntegers)
        }
        Want::Ports => ports(inner),
        Want::Integers(max) => {
            let remedy = "write a list of whole numbers, such as [31, 79]";
            let Some(list) = inner.as_array() else {
                return Err(mismatch("a list", remedy.to_owned()));
            };
            let numbers = list.iter().map(|number| integer(number.get_ref(), max));
            numbers.collect::<Result<_, _>>().map(Value::Integers)
        }
    }
}

/// `problem: remedy`, as the units of `model` word it.
fn split(message: &str) -> Vec<Wrong> {
    let (problem, remedy) = message.rsplit_once(": ").unwrap_or((message, "correct it"));
    wrong(problem, remedy)
}

fn texts(value: &DeValue<'_>) -> Result<Value, Vec<Wrong>> {
    let remedy = "write a list of quoted words, such as [\"python3\", \"train.py\"]";
    let Some(list) = value.as_array() else {
        return Err(wrong(format!("is {}, not a list of texts", kind(value)), remedy));
    };
    let mut words = Vec::new();
    for (at, item) in list.iter().enumerate() {
        match item.get_ref().as_str() {
            Some(word) => words.push(word.to_owned()),
            None => {
                let number = at + 1;
                let found = kind(item.get_ref());
                return Err(wrong(format!("its word {number} is {found}, not a text"), remedy));
            }
        }
    }
    Ok(Value::Texts(words))
}

fn integer(value: &DeValue<'_>, max: u64) -> Result<u64, Vec<Wrong>> {
    let DeValue::Integer(number) = value else {
        let shown = digits(value).unwrap_or_else(|| kind(value).to_owned());
        return Err(wrong(format!("{shown} is not a whole number"), "write such as 4"));
    };
    let range = || wrong(format!("{number} is out of range"), format!("give 0 to {max}"));
    let parsed = u64::from_str_radix(number.as_str().trim_start_matches('+'), number.radix());
    parsed.ok().filter(|number| *number <= max).ok_or_else(range)
}

fn decimal(value: &DeValue<'_>) -> Result<Value, Vec<Wrong>> {
    let not_a_number =
        |shown: String| wrong(format!("{shown} is not a number"), "write such as 1.5");
    let Some(text) = digits(value) else {
        return Err(not_a_number(kind(value).to_owned()));
    };
    match text.parse::<f64>() {
        Ok(number) => Ok(Value::Decimal(number)),
        Err(_) => Err(not_a_number(text)),
    }
}

fn free<T>(
    value: &DeValue<'_>,
    each: impl Fn(&DeValue<'_>) -> Result<T, Vec<Wrong>>,
) -> Result<BTreeMap<String, T>, Vec<Wrong>> {
    let Some(table) = value.as_table() else {
        return Err(wrong(format!("is {}, not a table", kind(value)), "write { name = value }"));
    };
    let (mut good, mut bad) = (BTreeMap::new(), Vec::new());
    for (name, value) in table {
        match each(value.get_ref()) {
            Ok(value) => {
                good.insert(name.get_ref().to_string(), value);
            }
            Err(wrongs) => bad.extend(wrongs.into_iter().map(|wrong| Wrong {
                below: format!(".{}", name.get_ref()),
                offset: Some(name.span().start),
                ..wrong
            })),
        }
    }
    if bad.is_empty() { Ok(good) } else { Err(bad) }
}

fn ports(value: &DeValue<'_>) -> Result<Value, Vec<Wrong>> {
    let port = |item: &Spanned<DeValue<'_>>| {
        let number = integer(item.get_ref(), u64::from(u16::MAX)).ok()?;
        u16::try_from(number).ok()
    };
    let ports: Option<Vec<u16>> = value.as_array().and_then(|list| list.iter().map(port).collect());
    match ports.as_deref() {
        Some([first, last]) => Ok(Value::Ports(*first, *last)),
        Some(_) | None => {
            Err(wrong("is not a list of two port numbers", "write such as [21000, 29999]"))
        }
    }
}

#[cfg(test)]
mod tests;
