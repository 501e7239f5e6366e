//! A gateway of the lab and what it counts.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::Deserialize;

use super::address::{Family, extra_prefix, subnet};
use crate::netns::Netns;

/// The kinds of packets that are counted apart, and how nft matches them; whatever else there is: [`OTHER`].
const KINDS: [(&str, &str); 6] = [
    ("tcp4", "meta nfproto ipv4 meta l4proto tcp"),
    ("udp4", "meta nfproto ipv4 meta l4proto udp"),
    ("icmp4", "meta nfproto ipv4 meta l4proto icmp"),
    ("tcp6", "meta nfproto ipv6 meta l4proto tcp"),
    ("udp6", "meta nfproto ipv6 meta l4proto udp"),
    ("icmp6", "meta nfproto ipv6 meta l4proto ipv6-icmp"),
];
const OTHER: [(&str, &str); 2] = [
    ("other4", "meta nfproto ipv4 meta l4proto != { tcp, udp, icmp }"),
    ("other6", "meta nfproto ipv6 meta l4proto != { tcp, udp, ipv6-icmp }"),
];

/// The router behind a NIC, where the client lives too.
#[derive(Debug)]
pub struct Gateway {
    ns: Netns,
    device: &'static str,
}

impl Gateway {
    pub(super) fn new(ns: Netns, device: &'static str) -> Self {
        Self { ns, device }
    }

    /// Its namespace.
    #[must_use]
    pub fn ns(&self) -> &Netns {
        &self.ns
    }

    /// Its device towards the node, `g0` or `g1`.
    #[must_use]
    pub fn device(&self) -> &'static str {
        self.device
    }

    /// Packets received on [`Gateway::device`], by counter:
    ///
    /// * `from_node`: all that the node sent (on a switch: with its Ethernet address); of these `from_node_tcp4`,
    ///   `_udp4`, `_icmp4`, `_other4` and the same with 6;
    /// * `wrong_source`: all that came with a source that is not of this network, which was dropped; the same kinds.
    ///
    /// ARP, neighbour discovery, MLD and IPv6 packets with a link-local or no source are in none of them.
    /// Fragments count one by one.
    #[must_use]
    pub fn counters(&self) -> BTreeMap<String, u64> {
        parse_counters(&self.ns.feed("nft", &["-j", "list", "counters", "table", "inet", "lab"], ""))
            .unwrap_or_else(|error| panic!("counters of {}: {error}", self.ns.name()))
    }

    /// One of the counters; panics if there is none of that name.
    #[must_use]
    pub fn counter(&self, name: &str) -> u64 {
        let counters = self.counters();
        *counters.get(name).unwrap_or_else(|| panic!("no counter {name}; there are {:?}", counters.keys()))
    }

    /// Sets all counters to zero.
    pub fn reset(&self) {
        self.ns.feed("nft", &["reset", "counters", "table", "inet", "lab"], "");
    }

    /// Makes one more prefix or address (a VIP) a right source on this network.
    pub fn allow_source(&self, prefix: &str) {
        let set = if prefix.contains(':') { "sources6" } else { "sources4" };
        self.ns.nft(&format!("add element inet lab {set} {{ {prefix} }}\n"));
    }
}

/// The counting rules of the gateway of a NIC. `node_mac` where others than the node send on the wire too.
pub(super) fn ruleset(nic: usize, device: &str, node_mac: Option<&str>) -> String {
    let mut counters = String::new();
    let mut count = |prefix: &str| {
        let mut rules = format!("counter name {prefix}\n");
        let _ = writeln!(counters, "counter {prefix} {{}}");
        for (kind, matched) in KINDS.iter().chain(&OTHER) {
            let _ = writeln!(counters, "counter {prefix}_{kind} {{}}");
            let _ = writeln!(rules, "{matched} counter name {prefix}_{kind}");
        }
        rules
    };
    let (from_node, wrong_source) = (count("from_node"), count("wrong_source"));
    let sources = |family| format!("{}, {}", subnet(nic, family), extra_prefix(nic, family));
    let from_node_only = node_mac.map(|mac| format!("ether saddr {mac} ")).unwrap_or_default();
    format!(
        "table inet lab {{
{counters}
set sources4 {{ type ipv4_addr; flags interval; auto-merge; elements = {{ {v4} }} }}
set sources6 {{ type ipv6_addr; flags interval; auto-merge; elements = {{ {v6} }} }}
chain from_node {{
{from_node}
}}
chain wrong_source {{
{wrong_source}
drop
}}
# before the reassembly of fragments at -400
chain received {{
type filter hook prerouting priority -450; policy accept;
iifname != {device} accept
meta l4proto ipv6-icmp icmpv6 type {{ 130, 131, 132, 133, 134, 135, 136, 137, 143 }} accept
ip6 saddr {{ ::, fe80::/10 }} accept
{from_node_only}jump from_node
ip saddr != @sources4 jump wrong_source
ip6 saddr != @sources6 jump wrong_source
}}
}}
",
        v4 = sources(Family::V4),
        v6 = sources(Family::V6),
    )
}

/// The parts of `nft -j list counters` that matter (libnftables-json(5), object COUNTER).
#[derive(Deserialize)]
struct Listing {
    nftables: Vec<Entry>,
}

#[derive(Deserialize)]
struct Entry {
    counter: Option<Counter>,
}

#[derive(Deserialize)]
struct Counter {
    name: String,
    packets: u64,
}

fn parse_counters(json: &str) -> Result<BTreeMap<String, u64>, serde_json::Error> {
    let listing: Listing = serde_json::from_str(json)?;
    let counters = listing.nftables.into_iter().filter_map(|entry| entry.counter);
    Ok(counters.map(|counter| (counter.name, counter.packets)).collect())
}
