//! What one object may say: text fields parsed into [`crate::config`] values, or every reason why not.
//!
//! Rules that need other objects are in [`crate::merge`], rules that need the host elsewhere.

mod field;
mod nic_class;
mod node_route_config;
mod route_entry;
mod selector;

use std::fmt;

use serde::Serialize;

pub(crate) use self::route_entry::{default_flaw, is_default, overlap};
pub use self::{
    field::dns_subdomain,
    nic_class::{nic_class, unsupported},
    node_route_config::node_route_config,
    route_entry::{route_entry, takes_default},
    selector::selects,
};
use super::Reason;

/// One thing about an object that cannot stand.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Violation {
    /// Path of the field: `spec.destinations[1]`.
    pub field: String,
    /// The value as written.
    pub value: String,
    pub reason: Reason,
    /// What is wrong with it.
    pub message: String,
    /// What to write instead.
    pub cure: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: `{}` {}: {}", self.field, self.value, self.message, self.cure)
    }
}

/// What is wrong with a value, before it is known whose.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Flaw {
    pub(crate) reason: Reason,
    pub(crate) message: String,
    pub(crate) cure: String,
}

impl Flaw {
    /// A flaw with the cure that always helps for `reason`.
    fn new(reason: Reason, message: impl Into<String>) -> Self {
        Self { reason, message: message.into(), cure: reason.cure().to_owned() }
    }

    fn cured_by(self, cure: impl Into<String>) -> Self {
        Self { cure: cure.into(), ..self }
    }
}

/// The violations of one object, collected so that a user sees all of them at once.
#[derive(Debug, Default)]
struct Violations(Vec<Violation>);

impl Violations {
    fn add(&mut self, field: impl Into<String>, value: impl fmt::Display, flaw: Flaw) {
        let Flaw { reason, message, cure } = flaw;
        self.0.push(Violation { field: field.into(), value: value.to_string(), reason, message, cure });
    }

    /// The parsed value; a flaw is recorded for `field`.
    fn keep<T>(&mut self, field: impl Into<String>, value: impl fmt::Display, parsed: Result<T, Flaw>) -> Option<T> {
        match parsed {
            Ok(parsed) => Some(parsed),
            Err(flaw) => {
                self.add(field, value, flaw);
                None
            }
        }
    }

    /// Parses each element of a list; fields are `FIELD[0]`, `FIELD[1]`, …
    fn each<T>(&mut self, field: &str, texts: &[String], parse: impl Fn(&str) -> Result<T, Flaw>) -> Vec<T> {
        texts
            .iter()
            .enumerate()
            .filter_map(|(index, text)| self.keep(format!("{field}[{index}]"), text, parse(text)))
            .collect()
    }

    fn into_result<T>(self, value: T) -> Result<T, Vec<Violation>> {
        if self.0.is_empty() { Ok(value) } else { Err(self.0) }
    }
}
