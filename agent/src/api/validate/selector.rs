//! Node selectors: Kubernetes label selectors over a node's labels.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};
use kube::core::{Selector, SelectorExt as _};

use super::{Flaw, Reason, Violations, field};

/// Whether `selector` selects a node with `labels`; an absent one selects every node, an invalid one none.
pub fn selects(selector: Option<&LabelSelector>, labels: &BTreeMap<String, String>) -> bool {
    match selector {
        None => true,
        Some(selector) => Selector::try_from(selector.clone()).is_ok_and(|selector| selector.matches(labels)),
    }
}

/// Records what Kubernetes would refuse in `selector`.
pub(super) fn check(violations: &mut Violations, path: &str, selector: Option<&LabelSelector>) {
    let Some(selector) = selector else { return };
    for (key, value) in selector.match_labels.iter().flatten() {
        let field = format!("{path}.matchLabels.{key}");
        violations.keep(&field, key, label_key(key));
        violations.keep(&field, value, label_value(value));
    }
    for (index, requirement) in selector.match_expressions.iter().flatten().enumerate() {
        let path = format!("{path}.matchExpressions[{index}]");
        violations.keep(format!("{path}.key"), &requirement.key, label_key(&requirement.key));
        violations.each(&format!("{path}.values"), requirement.values.as_deref().unwrap_or_default(), label_value);
        check_operator(violations, &path, requirement);
    }
}

fn check_operator(violations: &mut Violations, path: &str, requirement: &LabelSelectorRequirement) {
    let invalid = |message: &str| Flaw::new(Reason::InvalidSelector, message);
    let values = requirement.values.as_deref().unwrap_or_default();
    match requirement.operator.as_str() {
        "In" | "NotIn" if values.is_empty() => violations.add(
            format!("{path}.values"),
            "",
            invalid("names no value").cured_by(format!("list the values of {}", requirement.operator)),
        ),
        "Exists" | "DoesNotExist" if !values.is_empty() => violations.add(
            format!("{path}.values"),
            values.join(","),
            invalid("has no meaning here").cured_by(format!("remove the values of {}", requirement.operator)),
        ),
        "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
        unknown => violations.add(
            format!("{path}.operator"),
            unknown,
            Flaw::new(Reason::UnknownValue, "is not an operator").cured_by("write In, NotIn, Exists or DoesNotExist"),
        ),
    }
}

/// `[PREFIX/]NAME` as in the Kubernetes documentation on labels.
fn label_key(text: &str) -> Result<(), Flaw> {
    let (prefix, name) = match text.split_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, text),
    };
    let prefix_fits = prefix.is_none_or(|prefix| field::dns_subdomain(prefix).is_ok());
    if prefix_fits && !name.is_empty() && label_value(name).is_ok() {
        Ok(())
    } else {
        Err(Flaw::new(Reason::InvalidSelector, "is not a label key"))
    }
}

fn label_value(text: &str) -> Result<(), Flaw> {
    let edge = |c: Option<char>| c.is_none_or(|c| c.is_ascii_alphanumeric());
    let inner = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if text.len() <= 63 && text.chars().all(inner) && edge(text.chars().next()) && edge(text.chars().last()) {
        Ok(())
    } else {
        Err(Flaw::new(Reason::InvalidSelector, "is not a label value"))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn labels() -> BTreeMap<String, String> {
        [("pool", "a"), ("zone", "z1")].map(|(k, v)| (k.to_owned(), v.to_owned())).into()
    }

    fn selector(value: serde_json::Value) -> LabelSelector {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn labels_and_expressions_must_all_hold() {
        for (text, expected) in [
            (json!({}), true),
            (json!({"matchLabels": {"pool": "a"}}), true),
            (json!({"matchLabels": {"pool": "b"}}), false),
            (json!({"matchLabels": {"pool": "a", "other": "x"}}), false),
            (json!({"matchExpressions": [{"key": "pool", "operator": "In", "values": ["b", "a"]}]}), true),
            (json!({"matchExpressions": [{"key": "pool", "operator": "NotIn", "values": ["a"]}]}), false),
            (json!({"matchExpressions": [{"key": "other", "operator": "NotIn", "values": ["a"]}]}), true),
            (json!({"matchExpressions": [{"key": "zone", "operator": "Exists"}]}), true),
            (json!({"matchExpressions": [{"key": "zone", "operator": "DoesNotExist"}]}), false),
            (
                json!({"matchLabels": {"pool": "a"}, "matchExpressions": [{"key": "zone", "operator": "DoesNotExist"}]}),
                false,
            ),
        ] {
            assert_eq!(selects(Some(&selector(text.clone())), &labels()), expected, "{text}");
        }
        assert!(selects(None, &BTreeMap::new()));
    }

    #[test]
    fn what_kubernetes_would_refuse_is_refused() {
        for (text, field, reason) in [
            (json!({"matchLabels": {"a b": "c"}}), "s.matchLabels.a b", Reason::InvalidSelector),
            (json!({"matchLabels": {"a": "b c"}}), "s.matchLabels.a", Reason::InvalidSelector),
            (
                json!({"matchExpressions": [{"key": "a", "operator": "in", "values": ["b"]}]}),
                "s.matchExpressions[0].operator",
                Reason::UnknownValue,
            ),
            (
                json!({"matchExpressions": [{"key": "a", "operator": "In"}]}),
                "s.matchExpressions[0].values",
                Reason::InvalidSelector,
            ),
            (
                json!({"matchExpressions": [{"key": "a", "operator": "Exists", "values": ["b"]}]}),
                "s.matchExpressions[0].values",
                Reason::InvalidSelector,
            ),
        ] {
            let mut violations = Violations::default();
            check(&mut violations, "s", Some(&selector(text.clone())));
            let found: Vec<_> = violations.0.iter().map(|v| (v.field.as_str(), v.reason)).collect();
            assert_eq!(found, [(field, reason)], "{text}");
        }
        let mut violations = Violations::default();
        check(
            &mut violations,
            "s",
            Some(&selector(json!({"matchLabels": {"nicpath.dev/pool": "A_1.x", "empty": ""}}))),
        );
        assert_eq!(violations.0, []);
    }
}
