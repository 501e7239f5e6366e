//! The lab of the scenarios: a node with two NICs, each with a gateway of its own, and the same client behind both.
//!
//! ```text
//! gw0: g0 10.10.0.1/24 fd00:10::1/64 fe80::1 ─ eth0 10.10.0.10/24 fd00:10::10/64 (default) ┐
//!      lo 100.64.0.5 2001:db8:100::5                                                     node ─ vpod ─ pod
//! gw1: g1 10.20.0.1/24 fd00:20::1/64 fe80::1 ─ eth1 10.20.0.10/24 fd00:20::10/64 (none)    ┘
//!      lo 100.64.0.5 2001:db8:100::5
//! ```
//!
//! Each gateway counts what comes from the node ([`Gateway::counters`]) and, as a cloud does, drops a source that is
//! not of its network: a client that is content proves nothing while answers leave by the other NIC.
//!
//! veth hands over TCP super-packets; a test to which sizes on the wire matter says
//! `lab.node.ip("link set eth0 gso_max_segs 1")`.

mod address;
mod gateway;
mod setup;

use std::collections::BTreeMap;

use crate::netns::Netns;

pub use address::{
    CLIENT, CLUSTER, CLUSTER_PORT, Dual, Family, LINK_LOCAL_GATEWAY, NODE_PORT, POD, POD_GATEWAY, POD_PORT,
    SECOND_NODE, SECOND_NODE_POD, Side, extra_address, extra_prefix, gateway_address, mac, node_address, pod_subnet,
    subnet,
};
pub use gateway::Gateway;

/// What a lab is made of; [`TwoNic::builder`] starts with the plain one.
#[derive(Clone, Debug)]
pub struct Builder {
    forwarding: Forwarding,
    default_gateway: DefaultGateway,
    switch: Switch,
    pod: Pod,
    mtu: [u32; 2],
    rp_filter: [u8; 2],
    extra_addresses: [usize; 2],
}

/// Whether the node forwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Forwarding {
    Off,
    On,
}

/// Next hop of the node's IPv6 default route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DefaultGateway {
    Global,
    LinkLocal,
}

/// What joins eth0 and g0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Switch {
    /// One veth pair.
    None,
    /// A bridge in a namespace of its own, with a second node on it.
    WithSecondNode,
}

/// The pod behind the node and how its service is translated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pod {
    None,
    /// The pod sees the client's address.
    Plain,
    /// The pod sees the node's address on `vpod`.
    Masqueraded,
}

impl Builder {
    /// The node forwards, in both families.
    #[must_use]
    pub fn forwarding(mut self) -> Self {
        self.forwarding = Forwarding::On;
        self
    }

    /// The node's IPv6 default route goes by [`LINK_LOCAL_GATEWAY`].
    #[must_use]
    pub fn link_local_gateway(mut self) -> Self {
        self.default_gateway = DefaultGateway::LinkLocal;
        self
    }

    /// A bridge between eth0 and g0 carries a second node, [`SECOND_NODE`], which routes to the first one's pods.
    #[must_use]
    pub fn second_node(mut self) -> Self {
        self.switch = Switch::WithSecondNode;
        self
    }

    /// A pod, [`POD`], behind the node, which forwards and translates [`NODE_PORT`] (TCP and UDP, on every address of
    /// its own) and [`CLUSTER`] at [`CLUSTER_PORT`] to the pod's [`POD_PORT`].
    #[must_use]
    pub fn pod(mut self) -> Self {
        self.pod = Pod::Plain;
        self
    }

    /// As [`Builder::pod`], with the client's address replaced by the node's.
    #[must_use]
    pub fn masqueraded_pod(mut self) -> Self {
        self.pod = Pod::Masqueraded;
        self
    }

    /// MTU in bytes of a NIC (0 or 1) and its gateway; 1500 unless given.
    #[must_use]
    pub fn mtu(mut self, nic: usize, bytes: u32) -> Self {
        self.mtu[nic] = bytes;
        self
    }

    /// `rp_filter` of a NIC (0 or 1); 0 unless given.
    #[must_use]
    pub fn rp_filter(mut self, nic: usize, value: u8) -> Self {
        self.rp_filter[nic] = value;
        self
    }

    /// That many more addresses of each family on a NIC (0 or 1): [`extra_address`]; its gateway routes to them.
    #[must_use]
    pub fn extra_addresses(mut self, nic: usize, count: usize) -> Self {
        self.extra_addresses[nic] = count;
        self
    }

    /// Makes the namespaces and waits until every link carries packets. No neighbour is known then.
    #[must_use]
    pub fn build(self) -> TwoNic {
        setup::build(self)
    }
}

/// A lab that is up; everything of it is removed on drop.
#[derive(Debug)]
pub struct TwoNic {
    /// The host with the NICs `eth0` and `eth1`.
    pub node: Netns,
    gateways: [Gateway; 2],
    second_node: Option<Netns>,
    pod: Option<Netns>,
    switch: Option<Netns>,
    built: Builder,
}

impl TwoNic {
    /// The plain lab: two NICs, no forwarding, no pod, `rp_filter` 0, MTU 1500.
    #[must_use]
    pub fn builder() -> Builder {
        Builder {
            forwarding: Forwarding::Off,
            default_gateway: DefaultGateway::Global,
            switch: Switch::None,
            pod: Pod::None,
            mtu: [1500; 2],
            rp_filter: [0; 2],
            extra_addresses: [0; 2],
        }
    }

    /// The gateway behind a NIC (0 or 1).
    #[must_use]
    pub fn gw(&self, nic: usize) -> &Gateway {
        &self.gateways[nic]
    }

    /// The second node; panics if the lab has none.
    #[must_use]
    pub fn second_node(&self) -> &Netns {
        self.second_node.as_ref().unwrap_or_else(|| panic!("the lab was built without a second node"))
    }

    /// The pod; panics if the lab has none.
    #[must_use]
    pub fn pod(&self) -> &Netns {
        self.pod.as_ref().unwrap_or_else(|| panic!("the lab was built without a pod"))
    }

    /// The switch between eth0 and g0 (bridge `br0`, ports `node`, `gw0`, `n2`); panics if the lab has none.
    #[must_use]
    pub fn switch(&self) -> &Netns {
        self.switch.as_ref().unwrap_or_else(|| panic!("the lab was built without a switch"))
    }

    /// Every namespace of the lab.
    pub fn namespaces(&self) -> impl Iterator<Item = &Netns> {
        let gateways = self.gateways.iter().map(Gateway::ns);
        std::iter::once(&self.node).chain(gateways).chain(&self.second_node).chain(&self.pod).chain(&self.switch)
    }

    /// The next hop that the lab was built with for a NIC (0 or 1).
    #[must_use]
    pub fn gateway(&self, nic: usize, family: Family) -> std::net::IpAddr {
        match (self.built.default_gateway, family) {
            (DefaultGateway::LinkLocal, Family::V6) => LINK_LOCAL_GATEWAY,
            _ => gateway_address(nic, family),
        }
    }

    /// Forgets every neighbour in every namespace.
    pub fn cold(&self) {
        for netns in self.namespaces() {
            netns.ip("neigh flush all");
        }
    }

    /// The usual cure, for comparison: one rule per address of eth1, in both families, and a table 201 with the
    /// connected network and the gateway of eth1.
    pub fn policy_rules(&self) {
        for family in Family::ALL {
            let mut batch = format!(
                "route add {} dev eth1 table 201\nroute add default via {} dev eth1 table 201\n",
                subnet(1, family),
                self.gateway(1, family)
            );
            let extras = (0..self.built.extra_addresses[1]).map(|index| extra_address(1, index, family));
            for address in std::iter::once(node_address(1, family)).chain(extras) {
                batch.push_str(&format!("rule add from {address} lookup 201\n"));
            }
            self.node.feed("ip", &[family.option(), "-batch", "-"], &batch);
        }
    }

    /// Sets the counters of both gateways to zero.
    pub fn reset_counters(&self) {
        self.gateways.iter().for_each(Gateway::reset);
    }

    /// The counters of both gateways: `gw0 wrong_source` and so on, zero ones left out.
    #[must_use]
    pub fn counters(&self) -> BTreeMap<String, u64> {
        let all = self.gateways.iter().enumerate().flat_map(|(nic, gateway)| {
            gateway.counters().into_iter().map(move |(name, packets)| (format!("gw{nic} {name}"), packets))
        });
        all.filter(|(_, packets)| *packets > 0).collect()
    }

    /// Leaves the namespaces in place and returns their names: until a later process of the fixtures sweeps.
    pub fn keep(self) -> Vec<String> {
        let names = self.namespaces().map(|netns| netns.name().to_owned()).collect();
        std::mem::forget(self);
        names
    }
}

#[cfg(test)]
mod tests;
