use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::source::{Origin, Sourced};

fn sourced<K: serde::de::DeserializeOwned>(kind: &str, name: &str, spec: Value) -> Sourced<K> {
    let mut object = json!({"apiVersion": "nicpath.dev/v1alpha1", "kind": kind, "metadata": {"name": name}});
    object["spec"] = spec;
    Sourced { object: serde_json::from_value(object).unwrap(), origin: Origin::Api }
}

#[derive(Default)]
struct Source(Objects);

impl Source {
    fn class(mut self, name: &str, spec: Value) -> Self {
        self.0.nic_classes.push(sourced("NicClass", name, spec));
        self
    }

    fn entry(mut self, name: &str, spec: Value) -> Self {
        self.0.route_entries.push(sourced("RouteEntry", name, spec));
        self
    }

    fn config(mut self, name: &str, spec: Value) -> Self {
        self.0.node_route_configs.push(sourced("NodeRouteConfig", name, spec));
        self
    }

    fn merge(&self) -> NodeConfig {
        merge(&self.0, &node("n1", &[("pool", "a")]))
    }
}

fn node(name: &str, labels: &[(&str, &str)]) -> NodeIdentity {
    NodeIdentity { name: name.into(), labels: labels.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect() }
}

fn mgmt() -> Source {
    Source::default().class("mgmt", json!({"match": {"names": ["eth1"]}}))
}

fn routes(config: &NodeConfig) -> Vec<(String, String)> {
    config.routes.iter().map(|r| (r.destination.to_string(), r.from.name.clone())).collect()
}

fn refused(config: &NodeConfig) -> Vec<(String, Option<&str>, Reason)> {
    config.refused.iter().map(|r| (r.from.to_string(), r.destination.as_deref(), r.reason)).collect()
}

#[test]
fn only_objects_that_select_the_node_take_part() {
    let other = json!({"matchLabels": {"pool": "b"}});
    let config = mgmt()
        .class("other", json!({"match": {"names": ["eth2"]}, "nodeSelector": other}))
        .entry("here", json!({"destinations": ["172.30.0.0/16"], "nic": {"class": "mgmt"}}))
        .entry("there", json!({"destinations": ["172.31.0.0/16"], "nic": {"class": "mgmt"}, "nodeSelector": other}))
        .entry("broken-there", json!({"destinations": ["x"], "nic": {"class": "mgmt"}, "nodeSelector": other}))
        .merge();
    assert_eq!(config.nics.iter().map(|n| n.class.as_str()).collect::<Vec<_>>(), ["mgmt"]);
    assert_eq!(config.nics[0].network, "mgmt");
    assert_eq!(routes(&config), [("172.30.0.0/16".into(), "here".into())]);
    assert_eq!(config.refused, []);
}

#[test]
fn the_higher_priority_wins_then_the_smaller_name() {
    let to = |priority: i32| json!({"destinations": ["172.30.0.0/16"], "nic": {"class": "mgmt"}, "priority": priority});
    let config = mgmt().entry("a", to(0)).entry("b", to(5)).entry("c", to(5)).merge();
    assert_eq!(routes(&config), [("172.30.0.0/16".into(), "b".into())]);
    let destination = Some("172.30.0.0/16");
    assert_eq!(
        refused(&config),
        [
            ("RouteEntry/a".into(), destination, Reason::DuplicateDestination),
            ("RouteEntry/c".into(), destination, Reason::DuplicateDestination),
        ]
    );
    assert!(config.refused[0].message.contains("RouteEntry/b"), "{}", config.refused[0].message);
}

#[test]
fn two_halves_in_two_entries_are_the_default_and_both_are_refused() {
    for (one, two) in [("0.0.0.0/1", "128.0.0.0/1"), ("0.0.0.0/2", "64.0.0.0/2"), ("::/1", "8000::/1")] {
        let config = mgmt()
            .entry("one", json!({"destinations": [one, "172.30.0.0/16"], "nic": {"class": "mgmt"}}))
            .entry("two", json!({"destinations": [two], "nic": {"class": "mgmt"}}))
            .entry("three", json!({"destinations": ["172.31.0.0/16", "10.9.0.0/16"], "nic": {"class": "mgmt"}}))
            .merge();
        assert!(config.refused.iter().all(|r| r.reason == Reason::ProtectedDestination), "{one}");
        assert!(config.routes.iter().all(|r| r.destination.prefix_len() > 2), "{one}");
        assert_eq!(config.routes.iter().filter(|r| r.from.name == "three").count(), 2, "{one}");
    }
}

#[test]
fn halves_that_are_allowed_do_not_count() {
    let config = mgmt()
        .entry("one", json!({"destinations": ["0.0.0.0/2"], "nic": {"class": "mgmt"}, "allow": ["DefaultRoute"]}))
        .entry("two", json!({"destinations": ["64.0.0.0/2"], "nic": {"class": "mgmt"}}))
        .merge();
    assert_eq!(config.routes.len(), 2);
}

#[test]
fn a_refused_winner_leaves_its_destination_to_the_next() {
    let config = mgmt()
        .entry("a", json!({"destinations": ["172.30.0.0/16"], "nic": {"class": "gone"}, "priority": 9}))
        .entry("b", json!({"destinations": ["172.30.0.0/16"], "nic": {"class": "mgmt"}}))
        .merge();
    assert_eq!(routes(&config), [("172.30.0.0/16".into(), "b".into())]);
    assert_eq!(refused(&config), [("RouteEntry/a".into(), Some("172.30.0.0/16"), Reason::UnknownNic)]);
}

#[test]
fn an_invalid_object_is_refused_as_a_whole_with_every_cause() {
    let config = mgmt()
        .class("strict", json!({"match": {"names": ["eth2"]}, "isolation": {"mode": "Isolated"}}))
        .entry("bad", json!({"destinations": ["172.30.0.1/16", "172.31.0.0/16", "y"], "nic": {"class": "mgmt"}}))
        .merge();
    assert_eq!(config.routes, []);
    assert_eq!(config.nics.len(), 1);
    assert_eq!(
        refused(&config),
        [("NicClass/strict".into(), None, Reason::Unsupported), ("RouteEntry/bad".into(), None, Reason::HostBits),]
    );
    assert!(config.refused[1].message.contains("spec.destinations[2]"), "{}", config.refused[1].message);
}

#[test]
fn a_prefix_has_one_owner() {
    let config = Source::default()
        .class("b", json!({"match": {"names": ["eth2"]}, "ownedPrefixes": ["10.20.8.0/24", "10.20.9.0/24"]}))
        .class("a", json!({"match": {"names": ["eth1"]}, "ownedPrefixes": ["10.20.8.0/24"]}))
        .merge();
    assert_eq!(config.nics[0].owned_prefixes.len(), 1);
    assert_eq!(config.nics[1].owned_prefixes, ["10.20.9.0/24".parse().unwrap()]);
    assert_eq!(refused(&config), [("NicClass/b".into(), Some("10.20.8.0/24"), Reason::ClaimedTwice)]);
}

#[test]
fn a_node_route_config_of_the_node_alone_decides() {
    let source = mgmt()
        .entry("e", json!({"destinations": ["172.30.0.0/16"], "nic": {"class": "mgmt"}}))
        .config("n2", json!({}))
        .config("n1", json!({"routes": [{"destination": "172.31.0.0/16", "nic": {"name": "eth1"}}]}));
    let config = source.merge();
    assert_eq!(routes(&config), [("172.31.0.0/16".into(), "n1".into())]);
    assert_eq!(
        refused(&config),
        [("NicClass/mgmt".into(), None, Reason::Superseded), ("RouteEntry/e".into(), None, Reason::Superseded)]
    );
}

#[test]
fn routes_beyond_the_limit_are_refused_lowest_priority_first() {
    let many: Vec<String> = (0..MAX_ROUTES).map(|i| format!("172.{}.{}.0/24", 16 + i / 256, i % 256)).collect();
    let config = mgmt()
        .entry("many", json!({"destinations": many, "nic": {"class": "mgmt"}}))
        .entry("late", json!({"destinations": ["10.0.0.0/8"], "nic": {"class": "mgmt"}, "priority": -1}))
        .merge();
    assert_eq!(config.routes.len(), MAX_ROUTES);
    assert_eq!(refused(&config), [("RouteEntry/late".into(), Some("10.0.0.0/8"), Reason::TooManyRoutes)]);
}

/// Destinations that collide, nest and add up to halves of the default.
fn destination() -> impl Strategy<Value = String> {
    prop_oneof![
        (0u8..4).prop_map(|i| format!("{}.0.0.0/2", u16::from(i) * 64)),
        (0u8..6).prop_map(|i| format!("172.30.{i}.0/24")),
        (1u8..4).prop_map(|i| format!("fd00:{i}::/32")),
        Just("8000::/1".to_owned()),
    ]
}

fn entries() -> impl Strategy<Value = Vec<Value>> {
    let entry = (
        proptest::collection::btree_set(destination(), 1..4),
        prop_oneof![Just("mgmt"), Just("user"), Just("gone")],
        -1i32..2,
        prop_oneof![Just(json!([])), Just(json!(["DefaultRoute"])), Just(json!(["ControlPlane", "DefaultRoute"]))],
        prop_oneof![Just("a"), Just("b")],
    )
        .prop_map(|(destinations, class, priority, allow, pool)| {
            json!({
                "destinations": destinations, "nic": {"class": class}, "priority": priority, "allow": allow,
                "nodeSelector": {"matchLabels": {"pool": pool}},
            })
        });
    proptest::collection::vec(entry, 0..12)
}

fn source_of(entries: &[Value]) -> Source {
    let source = mgmt().class("user", json!({"match": {"names": ["eth0"]}}));
    entries.iter().enumerate().fold(source, |source, (i, spec)| source.entry(&format!("e{i:02}"), spec.clone()))
}

proptest! {
    #[test]
    fn the_order_of_objects_does_not_matter(
        (entries, order) in entries().prop_flat_map(|entries| {
            let order: Vec<usize> = (0..entries.len()).collect();
            (Just(entries), Just(order).prop_shuffle())
        }),
    ) {
        let source = source_of(&entries);
        let mut shuffled = Source::default();
        shuffled.0.nic_classes = source.0.nic_classes.iter().rev().cloned().collect();
        shuffled.0.route_entries = order.into_iter().map(|i| source.0.route_entries[i].clone()).collect();
        prop_assert_eq!(shuffled.merge(), source.merge());
    }

    #[test]
    fn every_selected_destination_is_a_route_or_refused_once(entries in entries()) {
        let config = source_of(&entries).merge();
        let mut expected = vec![];
        let mut whole = BTreeSet::new();
        for refusal in config.refused.iter().filter(|r| r.destination.is_none()) {
            prop_assert!(whole.insert(refusal.from.name.clone()));
        }
        for (i, spec) in entries.iter().enumerate() {
            let name = format!("e{i:02}");
            if spec["nodeSelector"]["matchLabels"]["pool"] == "a" && !whole.contains(&name) {
                for destination in spec["destinations"].as_array().unwrap() {
                    expected.push((name.clone(), destination.as_str().unwrap().to_owned()));
                }
            }
        }
        let mut found: Vec<(String, String)> = config
            .routes
            .iter()
            .map(|r| (r.from.name.clone(), r.destination.to_string()))
            .chain(config.refused.iter().filter_map(|r| Some((r.from.name.clone(), r.destination.clone()?))))
            .collect();
        found.sort();
        expected.sort();
        prop_assert_eq!(found, expected);
    }

    #[test]
    fn no_union_without_leave_amounts_to_the_default(entries in entries()) {
        let config = source_of(&entries).merge();
        prop_assert!(validate::takes_default(&config.routes).is_empty());
    }

    #[test]
    fn merging_its_own_result_changes_nothing(entries in entries()) {
        let first = source_of(&entries).merge();
        let again = source_of(
            &first
                .routes
                .iter()
                .map(|r| json!({
                    "destinations": [r.destination], "nic": {"class": match &r.nic {
                        NicRef::Class(class) => class, NicRef::Name(name) => name,
                    }}, "allow": r.allow, "nodeSelector": {"matchLabels": {"pool": "a"}},
                }))
                .collect::<Vec<_>>(),
        )
        .merge();
        let essence = |config: &NodeConfig| {
            config.routes.iter().map(|r| (r.destination, r.nic.clone(), r.allow.clone())).collect::<Vec<_>>()
        };
        prop_assert_eq!(essence(&again), essence(&first));
        prop_assert_eq!(again.refused, vec![]);
    }
}
