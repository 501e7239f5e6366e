//! YAML text → documents → trees whose every key and value knows its line.

use std::fmt;

use serde::{
    Deserialize, Deserializer,
    de::{self, MapAccess, SeqAccess, Visitor},
};
use serde_saphyr::{Options, Spanned, budget, options, options::DuplicateKeyPolicy};

/// Deeper than any of our objects, shallow enough for recursion over a tree.
const MAX_DEPTH: usize = 32;

/// One document of a file, not parsed yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Document<'a> {
    /// 1-based place in the file.
    pub(super) number: usize,
    /// Lines of the file before `text`.
    pub(super) lines_before: usize,
    /// From the `---` line on.
    pub(super) text: &'a str,
}

/// Why a document is no tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SyntaxError {
    /// 1-based line of the file.
    pub(super) line: usize,
    pub(super) message: String,
}

/// The documents of a file. They are cut before they are parsed, so that one with a syntax error does not hide what
/// is wrong in the next: a line that starts with `---` begins a document wherever it stands (YAML 1.2.2 section 9.1.2).
pub(super) fn documents(text: &str) -> Vec<Document<'_>> {
    let mut starts = vec![(0, 0)];
    let mut offset = 0;
    for (index, line) in text.split_inclusive('\n').enumerate() {
        let marker =
            line.strip_prefix("---").is_some_and(|rest| rest.is_empty() || rest.starts_with([' ', '\t', '\r', '\n']));
        if marker && offset > 0 {
            starts.push((offset, index));
        }
        offset += line.len();
    }
    let ends = starts.iter().skip(1).map(|(start, _)| *start).chain([text.len()]);
    let mut chunks: Vec<(usize, &str)> =
        starts.iter().zip(ends).map(|((start, lines), end)| (*lines, &text[*start..end])).collect();
    // comments before the first marker are no document
    if chunks.len() > 1 && chunks.first().is_some_and(|(_, chunk)| !chunk.starts_with("---") && is_blank(chunk)) {
        chunks.remove(0);
    }
    chunks
        .into_iter()
        .enumerate()
        .map(|(index, (lines_before, text))| Document { number: index + 1, lines_before, text })
        .collect()
}

/// Nothing but markers, comments and white space.
fn is_blank(text: &str) -> bool {
    text.lines().all(|line| {
        let rest = line.strip_prefix("---").or_else(|| line.strip_prefix("...")).unwrap_or(line).trim();
        rest.is_empty() || rest.starts_with('#')
    })
}

impl Document<'_> {
    /// The document's tree; None if it is empty.
    pub(super) fn parse(&self) -> Result<Option<Node>, SyntaxError> {
        if is_blank(self.text) {
            return Ok(None);
        }
        match serde_saphyr::from_str_with_options::<Node>(self.text, parser_options()) {
            Ok(Node { value: Value::Null, .. }) => Ok(None),
            Ok(mut node) => {
                node.shift(self.lines_before);
                Ok(Some(node))
            }
            Err(error) => {
                let line = error.location().map_or(1, |location| to_usize(location.line()).max(1));
                Err(SyntaxError { line: line + self.lines_before, message: first_line(&error) })
            }
        }
    }
}

fn parser_options() -> Options {
    options! {
        budget: budget! { max_depth: MAX_DEPTH },
        emit_comments: false,
        strict_booleans: true,
        // repeated keys are reported with both their lines
        duplicate_keys: DuplicateKeyPolicy::PassThrough,
        with_snippet: false,
    }
}

/// The parser's message without the place, which the caller says in its own way.
fn first_line(error: &serde_saphyr::Error) -> String {
    let mut error = error;
    while let serde_saphyr::Error::WithSnippet { error: inner, .. }
    | serde_saphyr::Error::AliasError { error: inner, .. } = error
    {
        error = inner;
    }
    if matches!(error, serde_saphyr::Error::Budget { .. }) {
        return "is nested too deeply, or its aliases expand to too much".to_owned();
    }
    let text = error.to_string();
    let line = text.lines().next().unwrap_or_default();
    line.split(" at line ").next().unwrap_or(line).trim_end_matches([':', ',', ' ']).to_owned()
}

fn to_usize(line: u64) -> usize {
    usize::try_from(line).unwrap_or(usize::MAX)
}

/// A value and the 1-based line of the file on which it begins.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Node {
    pub(super) line: usize,
    pub(super) value: Value,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Value {
    Null,
    Bool(bool),
    Integer(i128),
    Float(f64),
    String(String),
    Sequence(Vec<Node>),
    Mapping(Vec<Entry>),
}

/// A key of a mapping, its 1-based line, and its value.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Entry {
    pub(super) key: String,
    pub(super) line: usize,
    pub(super) node: Node,
}

impl Node {
    /// The value of `key`, if this is a mapping that has it.
    pub(super) fn get(&self, key: &str) -> Option<&Entry> {
        match &self.value {
            Value::Mapping(entries) => entries.iter().find(|entry| entry.key == key),
            _ => None,
        }
    }

    pub(super) fn as_str(&self) -> Option<&str> {
        match &self.value {
            Value::String(text) => Some(text),
            _ => None,
        }
    }

    /// The line of the value at `path` (`spec.destinations[1]`), or of the innermost part of it that exists.
    pub(super) fn line_of(&self, path: &str) -> usize {
        let mut node = self;
        let mut line = self.line;
        for part in path.split(['.', '[']) {
            let next = match (&node.value, part.strip_suffix(']')) {
                (Value::Sequence(items), Some(index)) => {
                    index.parse().ok().and_then(|index: usize| items.get(index)).map(|item| (item, item.line))
                }
                (Value::Mapping(_), None) => node.get(part).map(|entry| match entry.node.value {
                    // a list or mapping is named by its key
                    Value::Sequence(_) | Value::Mapping(_) | Value::Null => (&entry.node, entry.line),
                    _ => (&entry.node, entry.node.line),
                }),
                _ => None,
            };
            let Some((found, at)) = next else { break };
            (node, line) = (found, at);
        }
        line
    }

    /// The value in JSON's terms, for decoding into a type.
    pub(super) fn to_json(&self) -> serde_json::Value {
        match &self.value {
            Value::Null => serde_json::Value::Null,
            Value::Bool(value) => (*value).into(),
            Value::Integer(value) => match (i64::try_from(*value), u64::try_from(*value)) {
                (Ok(value), _) => value.into(),
                (_, Ok(value)) => value.into(),
                (Err(_), Err(_)) => value.to_string().into(),
            },
            Value::Float(value) => (*value).into(),
            Value::String(value) => value.as_str().into(),
            Value::Sequence(items) => items.iter().map(Self::to_json).collect(),
            Value::Mapping(entries) => entries.iter().map(|entry| (entry.key.clone(), entry.node.to_json())).collect(),
        }
    }

    fn shift(&mut self, lines: usize) {
        self.line += lines;
        match &mut self.value {
            Value::Sequence(items) => items.iter_mut().for_each(|item| item.shift(lines)),
            Value::Mapping(entries) => {
                for entry in entries {
                    entry.line += lines;
                    entry.node.shift(lines);
                }
            }
            Value::Null | Value::Bool(_) | Value::Integer(_) | Value::Float(_) | Value::String(_) => {}
        }
    }
}

impl fmt::Display for Node {
    /// A scalar as written, a collection as the short name of what it is.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.value {
            Value::Null => f.write_str("null"),
            Value::Bool(value) => value.fmt(f),
            Value::Integer(value) => value.fmt(f),
            Value::Float(value) => value.fmt(f),
            Value::String(value) => value.fmt(f),
            Value::Sequence(items) => write!(f, "[{} items]", items.len()),
            Value::Mapping(entries) => {
                let keys: Vec<&str> = entries.iter().take(4).map(|entry| entry.key.as_str()).collect();
                write!(f, "{{{}{}}}", keys.join(", "), if entries.len() > keys.len() { ", …" } else { "" })
            }
        }
    }
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let spanned = Spanned::<Value>::deserialize(deserializer)?;
        Ok(Self { line: to_usize(spanned.referenced.line()), value: spanned.value })
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ValueVisitor)
    }
}

struct ValueVisitor;

impl<'de> Visitor<'de> for ValueVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a YAML value")
    }

    fn visit_unit<E: de::Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_none<E: de::Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        Value::deserialize(deserializer)
    }

    fn visit_bool<E: de::Error>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Integer(value.into()))
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<Value, E> {
        Ok(Value::Integer(value.into()))
    }

    fn visit_i128<E: de::Error>(self, value: i128) -> Result<Value, E> {
        Ok(Value::Integer(value))
    }

    fn visit_u128<E: de::Error>(self, value: u128) -> Result<Value, E> {
        Ok(i128::try_from(value).map_or_else(|_| Value::String(value.to_string()), Value::Integer))
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<Value, E> {
        Ok(Value::Float(value))
    }

    fn visit_str<E: de::Error>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut items = vec![];
        while let Some(item) = access.next_element()? {
            items.push(item);
        }
        Ok(Value::Sequence(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut entries = vec![];
        while let Some((key, node)) = access.next_entry::<Spanned<String>, Node>()? {
            entries.push(Entry { line: to_usize(key.referenced.line()), key: key.value, node });
        }
        Ok(Value::Mapping(entries))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(text: &str) -> Node {
        documents(text)[0].parse().unwrap().unwrap()
    }

    fn error(text: &str) -> SyntaxError {
        documents(text)[0].parse().unwrap_err()
    }

    #[test]
    fn documents_are_numbered_and_keep_their_lines() {
        let found: Vec<_> = documents("# licence\n---\na: 1\n---\n---\nb: 2\n--- # c\nc: 3\n")
            .iter()
            .map(|d| (d.number, d.lines_before, d.parse().unwrap().is_some()))
            .collect();
        assert_eq!(found, [(1, 1, true), (2, 3, false), (3, 4, true), (4, 6, true)]);
        assert_eq!(documents("a: 1").len(), 1);
        assert_eq!(documents("---\na: 1\n").len(), 1);
        assert_eq!(documents("----\na").len(), 1);
    }

    #[test]
    fn keys_and_values_know_their_lines() {
        let node =
            documents("---\nx: 1\n---\nspec:\n  destinations:\n    - 10.0.0.0/8\n    - y\n  nic: {class: mgmt}\n")[1]
                .parse()
                .unwrap()
                .unwrap();
        assert_eq!(node.line_of("spec"), 4);
        assert_eq!(node.line_of("spec.destinations"), 5);
        assert_eq!(node.line_of("spec.destinations[1]"), 7);
        assert_eq!(node.line_of("spec.destinations[9]"), 5);
        assert_eq!(node.line_of("spec.nic.class"), 8);
        assert_eq!(node.line_of("spec.nic.name"), 8);
    }

    #[test]
    fn scalars_have_the_types_of_yaml_1_2() {
        let node = tree("a: 22\nb: '22'\nc: true\nd: yes\ne: ~\nf: 1.5\ng: 02:00:00:00:00:01\nh: 10:20:30:40:50:12\n");
        let value = |key: &str| node.get(key).unwrap().node.value.clone();
        assert_eq!(value("a"), Value::Integer(22));
        assert_eq!(value("b"), Value::String("22".into()));
        assert_eq!(value("c"), Value::Bool(true));
        assert_eq!(value("d"), Value::String("yes".into()));
        assert_eq!(value("e"), Value::Null);
        assert_eq!(value("f"), Value::Float(1.5));
        assert_eq!(value("g"), Value::String("02:00:00:00:00:01".into()));
        assert_eq!(value("h"), Value::String("10:20:30:40:50:12".into()));
    }

    #[test]
    fn json_is_yaml_also_with_tabs() {
        let node = tree("{\n\t\"kind\": \"RouteEntry\",\n\t\"spec\": {\n\t\t\"mtu\": 1400\n\t}\n}\n");
        assert_eq!(node.line_of("spec.mtu"), 4);
    }

    #[test]
    fn repeated_keys_are_all_kept() {
        let Value::Mapping(entries) = tree("a: 1\nb: 2\na: 3\n").value else { panic!("not a mapping") };
        assert_eq!(
            entries.iter().map(|e| (e.key.as_str(), e.line)).collect::<Vec<_>>(),
            [("a", 1), ("b", 2), ("a", 3)]
        );
    }

    #[test]
    fn syntax_errors_name_the_line_of_the_file() {
        let found = documents("---\na: 1\n---\nb: [1,\nc: 2\n")[1].parse().unwrap_err();
        assert!((4..=6).contains(&found.line), "{found:?}");
        let tab = error("spec:\n\tmtu: 1400\n");
        assert_eq!(tab.line, 2, "{tab:?}");
        assert!(tab.message.to_lowercase().contains("tab"), "{tab:?}");
    }

    #[test]
    fn bombs_are_refused_before_they_burst() {
        let mut bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
        for i in 1..12 {
            let alias = format!("*a{}", i - 1);
            bomb += &format!("a{i}: &a{i} [{}]\n", vec![alias; 10].join(", "));
        }
        for text in [bomb, format!("{}x", "- ".repeat(1_000_000))] {
            let found = error(&text);
            assert_eq!(found.message, "is nested too deeply, or its aliases expand to too much");
        }
        assert_eq!(error(&"[".repeat(1_000_000)).line, 1);
    }
}
