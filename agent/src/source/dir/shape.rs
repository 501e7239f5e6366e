//! Whether a tree has the fields and types of a kind: the schema of its CustomResourceDefinition, applied so that every
//! fault is found at once, with its line.

use std::collections::BTreeMap;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
};

use super::yaml::{Entry, Node, Value};
use crate::api::Reason;

/// One fault of a tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Fault {
    pub(super) line: usize,
    pub(super) field: String,
    pub(super) value: String,
    pub(super) reason: Reason,
    pub(super) message: String,
    pub(super) cure: String,
}

/// Records in `faults` where `node`, the value of `field`, differs from `schema`.
pub(super) fn check(node: &Node, field: &str, schema: &JSONSchemaProps, faults: &mut Vec<Fault>) {
    match (&node.value, schema.type_.as_deref()) {
        (Value::Null, _) if schema.nullable == Some(true) => {}
        (Value::Mapping(entries), Some("object")) => check_mapping(node, entries, field, schema, faults),
        (Value::Sequence(items), Some("array")) => {
            let Some(JSONSchemaPropsOrArray::Schema(items_schema)) = &schema.items else { return };
            for (index, item) in items.iter().enumerate() {
                check(item, &format!("{field}[{index}]"), items_schema, faults);
            }
        }
        (Value::String(text), Some("string")) => check_word(node, text, field, schema, faults),
        (Value::Bool(_), Some("boolean")) | (Value::Float(_) | Value::Integer(_), Some("number")) => {}
        (Value::Integer(number), Some("integer")) => {
            let (least, most) = integer_range(schema.format.as_deref());
            if !(least..=most).contains(number) {
                faults.push(Fault {
                    line: node.line,
                    field: field.to_owned(),
                    value: number.to_string(),
                    reason: Reason::WrongType,
                    message: "is out of range".to_owned(),
                    cure: format!("write a whole number from {least} to {most}"),
                });
            }
        }
        (_, Some(expected)) => faults.push(wrong_type(node, field, expected)),
        (_, None) => {}
    }
}

fn check_mapping(node: &Node, entries: &[Entry], field: &str, schema: &JSONSchemaProps, faults: &mut Vec<Fault>) {
    check_repeats(entries, field, faults);
    let none = BTreeMap::new();
    let known = schema.properties.as_ref().unwrap_or(&none);
    for entry in entries {
        let path = format!("{field}.{}", entry.key);
        if let Some(schema) = known.get(&entry.key) {
            check(&entry.node, &path, schema, faults);
        } else if let Some(JSONSchemaPropsOrBool::Schema(schema)) = &schema.additional_properties {
            check(&entry.node, &path, schema, faults);
        } else {
            let names: Vec<&str> = known.keys().map(String::as_str).collect();
            faults.push(unknown_field(entry, path, &names));
        }
    }
    let missing = |name: &String| !entries.iter().any(|entry| entry.key == *name);
    for name in schema.required.iter().flatten().filter(|name| missing(name)) {
        faults.push(missing_field(node, format!("{field}.{name}")));
    }
    // of `nic: {class}` and `nic: {name}`, one
    if let Some(branches) = &schema.one_of {
        let names: Vec<&str> = branches.iter().flat_map(|b| b.required.iter().flatten()).map(String::as_str).collect();
        let given = names.iter().filter(|name| entries.iter().any(|entry| entry.key == **name)).count();
        if given != 1 {
            faults.push(Fault {
                line: node.line,
                field: field.to_owned(),
                value: node.to_string(),
                reason: if given == 0 { Reason::MissingField } else { Reason::UnknownField },
                message: format!("has {given} of {}, and needs one", names.join(" and ")),
                cure: format!("give exactly one of {}", names.join(" and ")),
            });
        }
    }
}

/// The value of `node` in JSON's terms, without fields that `schema` does not know.
pub(super) fn known(node: &Node, schema: &JSONSchemaProps) -> serde_json::Value {
    match (&node.value, &schema.properties, &schema.items) {
        (Value::Mapping(entries), Some(properties), _) => entries
            .iter()
            .filter_map(|entry| Some((entry.key.clone(), known(&entry.node, properties.get(&entry.key)?))))
            .collect(),
        (Value::Sequence(items), _, Some(JSONSchemaPropsOrArray::Schema(schema))) => {
            items.iter().map(|item| known(item, schema)).collect()
        }
        _ => node.to_json(),
    }
}

/// Records keys that a mapping has more than once.
pub(super) fn check_repeats(entries: &[Entry], field: &str, faults: &mut Vec<Fault>) {
    let mut lines: BTreeMap<&str, usize> = BTreeMap::new();
    for entry in entries {
        if let Some(first) = lines.get(entry.key.as_str()) {
            faults.push(Fault {
                line: entry.line,
                field: if field.is_empty() { entry.key.clone() } else { format!("{field}.{}", entry.key) },
                value: entry.node.to_string(),
                reason: Reason::DuplicateKey,
                message: format!("is a key that line {first} has already"),
                cure: Reason::DuplicateKey.cure().to_owned(),
            });
        } else {
            lines.insert(&entry.key, entry.line);
        }
    }
}

pub(super) fn unknown_field(entry: &Entry, field: String, known: &[&str]) -> Fault {
    Fault {
        line: entry.line,
        field,
        value: entry.node.to_string(),
        reason: Reason::UnknownField,
        message: "is not a field of this object".to_owned(),
        cure: format!("known here: {}", known.join(", ")),
    }
}

pub(super) fn missing_field(node: &Node, field: String) -> Fault {
    Fault {
        line: node.line,
        field,
        value: String::new(),
        reason: Reason::MissingField,
        message: "is missing".to_owned(),
        cure: Reason::MissingField.cure().to_owned(),
    }
}

fn check_word(node: &Node, text: &str, field: &str, schema: &JSONSchemaProps, faults: &mut Vec<Fault>) {
    let Some(words) = &schema.enum_ else { return };
    if words.iter().any(|word| word.0 == *text) {
        return;
    }
    let words: Vec<&str> = words.iter().filter_map(|word| word.0.as_str()).collect();
    faults.push(Fault {
        line: node.line,
        field: field.to_owned(),
        value: text.to_owned(),
        reason: Reason::UnknownValue,
        message: "is none of the values it can have".to_owned(),
        cure: format!("write {}", words.join(" or ")),
    });
}

pub(super) fn wrong_type(node: &Node, field: &str, expected: &str) -> Fault {
    let found = match &node.value {
        Value::Null => "nothing",
        Value::Bool(_) => "a boolean",
        Value::Integer(_) => "a whole number",
        Value::Float(_) => "a number",
        Value::String(_) => "a string",
        Value::Sequence(_) => "a list",
        Value::Mapping(_) => "a mapping",
    };
    let wanted = match expected {
        "object" => "a mapping",
        "array" => "a list",
        "string" => "a string",
        "integer" => "a whole number",
        "boolean" => "a boolean",
        other => other,
    };
    let cure = match (&node.value, expected) {
        (Value::Null, _) => "give it a value, or remove the key".to_owned(),
        (Value::Bool(_) | Value::Integer(_) | Value::Float(_), "string") => format!("write it in quotes: \"{node}\""),
        (Value::String(_), "boolean") => "write true or false".to_owned(),
        (Value::String(text), "integer") if text.parse::<i64>().is_ok() => format!("write it without quotes: {text}"),
        (Value::Bool(_) | Value::Integer(_) | Value::Float(_) | Value::String(_), "array") => {
            format!("write a list: [{node}]")
        }
        _ => format!("write {wanted}"),
    };
    Fault {
        line: node.line,
        field: field.to_owned(),
        value: node.to_string(),
        reason: Reason::WrongType,
        message: format!("is {found} where {wanted} is needed"),
        cure,
    }
}

fn integer_range(format: Option<&str>) -> (i128, i128) {
    match format {
        Some("uint32") => (0, u32::MAX.into()),
        Some("int32") => (i32::MIN.into(), i32::MAX.into()),
        _ => (i64::MIN.into(), i64::MAX.into()),
    }
}
