//! Brings a lab up, with one `ip -batch` per namespace: the wires are made from their far ends, so that the node's NICs
//! have carrier from their first moment.

use std::fmt::Write as _;
use std::thread;
use std::time::Duration;

use super::address::{
    CLIENT, CLUSTER, CLUSTER_PORT, Family, NODE_PORT, POD, POD_GATEWAY, POD_PORT, SECOND_NODE, SECOND_NODE_POD, Side,
    extra_address, extra_prefix, gateway_address, mac, mac_text, node_address, pod_subnet,
};
use super::{Builder, DefaultGateway, Forwarding, Gateway, Pod, Switch, TwoNic, gateway};
use crate::netns::Netns;
use crate::wait::eventually;

/// Interface indices: those of the node as on any host, and others at the far ends. For a veth whose peer has the same
/// index in another namespace the kernel announces the carrier up to a second late (net/core/link_watch.c).
const NODE_INDEX: u32 = 2;
const POD_INDEX: u32 = 4;
const FAR_INDEX: u32 = 10;
const SWITCH_INDEX: u32 = 20;

/// Prefix lengths of the lab's networks.
const V4_BITS: u8 = 24;
const V6_BITS: u8 = 64;

/// No duplicate address detection, no router solicitations, no reverse-path filter, for the devices still to come.
const QUIET: [(&str, &str); 5] = [
    ("net/ipv6/conf/all/accept_dad", "0"),
    ("net/ipv6/conf/default/accept_dad", "0"),
    ("net/ipv6/conf/default/router_solicitations", "0"),
    ("net/ipv4/conf/all/rp_filter", "0"),
    ("net/ipv4/conf/default/rp_filter", "0"),
];

pub(super) fn build(built: Builder) -> TwoNic {
    let node = Netns::bare("node");
    let gateways = [Gateway::new(Netns::bare("gw0"), "g0"), Gateway::new(Netns::bare("gw1"), "g1")];
    let bare_if = |wanted: bool, role| wanted.then(|| Netns::bare(role));
    let switch = bare_if(built.switch == Switch::WithSecondNode, "sw");
    let second_node = bare_if(built.switch == Switch::WithSecondNode, "n2");
    let pod = bare_if(built.pod != Pod::None, "pod");
    let lab = TwoNic { node, gateways, second_node, pod, switch, built };

    for netns in lab.namespaces() {
        netns.sysctls(&QUIET);
    }
    set_up_node_settings(&lab);
    if let Some(switch) = &lab.switch {
        switch.sysctl("net/ipv6/conf/default/disable_ipv6", "1");
        switch.ip_batch(&switch_batch(&lab));
    }
    thread::scope(|scope| {
        for nic in 0..2 {
            scope.spawn(gateway_work(&lab, nic));
        }
        if let Some(second_node) = &lab.second_node {
            scope.spawn(|| second_node.ip_batch(&second_node_batch()));
        }
        if let Some(pod) = &lab.pod {
            scope.spawn(|| pod.ip_batch(&pod_batch(&lab)));
        }
    });
    thread::scope(|scope| {
        let node_mac = lab.switch.is_some().then(|| mac_text(mac(0, Side::Node)));
        for (nic, node_mac) in [(0, node_mac), (1, None)] {
            let gateway = lab.gw(nic);
            scope.spawn(move || gateway.ns().nft(&gateway::ruleset(nic, gateway.device(), node_mac.as_deref())));
        }
        lab.node.ip_batch(&node_batch(&lab));
        if lab.pod.is_some() {
            lab.node.nft(&service_ruleset(lab.built.pod));
        }
    });
    for nic in 0..2 {
        let filter = lab.built.rp_filter[nic].to_string();
        if filter != "0" {
            lab.node.sysctl(&format!("net/ipv4/conf/eth{nic}/rp_filter"), &filter);
        }
    }
    wait_for_links(&lab);
    lab
}

fn set_up_node_settings(lab: &TwoNic) {
    if lab.built.forwarding == Forwarding::On || lab.pod.is_some() {
        lab.node.sysctls(&[("net/ipv4/ip_forward", "1"), ("net/ipv6/conf/all/forwarding", "1")]);
    }
}

/// The work that brings one gateway up, with its wire to the node where no switch lies between.
fn gateway_work(lab: &TwoNic, nic: usize) -> impl FnOnce() + Send + '_ {
    move || {
        let ns = lab.gw(nic).ns();
        // A gateway whose ARP requests carried the client's address would be dropped by a strict rp_filter.
        ns.sysctls(&[("net/ipv4/conf/all/arp_announce", "2"), ("net/ipv4/conf/default/arp_announce", "2")]);
        ns.ip_batch(&gateway_batch(lab, nic));
    }
}

fn gateway_batch(lab: &TwoNic, nic: usize) -> String {
    let mut batch = String::from("link set lo up\n");
    if nic == 1 || lab.switch.is_none() {
        let (near, far) = (mac_text(mac(nic, Side::Gateway)), mac_text(mac(nic, Side::Node)));
        let (mtu, node) = (lab.built.mtu[nic], lab.node.name());
        let _ = writeln!(
            batch,
            "link add g{nic} index {FAR_INDEX} address {near} mtu {mtu} type veth \
             peer name eth{nic} index {} address {far} mtu {mtu} netns {node}",
            node_index(nic)
        );
    }
    for family in Family::ALL {
        add_address(&mut batch, CLIENT.get(family), family.bits(), "lo");
        add_address(&mut batch, gateway_address(nic, family), bits(family), &format!("g{nic}"));
    }
    let _ = writeln!(batch, "addr add fe80::1/64 dev g{nic} nodad\nlink set g{nic} up");
    for family in Family::ALL {
        let node = node_address(nic, family);
        if lab.built.extra_addresses[nic] > 0 {
            let _ = writeln!(batch, "route add {} via {node}", extra_prefix(nic, family));
        }
        if lab.pod.is_some() {
            let _ = writeln!(batch, "route add {} via {node}", pod_subnet(family));
        }
    }
    batch
}

fn node_batch(lab: &TwoNic) -> String {
    let mut batch = String::from("link set lo up\n");
    for nic in 0..2 {
        for family in Family::ALL {
            let device = format!("eth{nic}");
            add_address(&mut batch, node_address(nic, family), bits(family), &device);
            for index in 0..lab.built.extra_addresses[nic] {
                add_address(&mut batch, extra_address(nic, index, family), family.bits(), &device);
            }
        }
        let _ = writeln!(batch, "link set eth{nic} up");
    }
    let _ = writeln!(batch, "route add default via {}", gateway_address(0, Family::V4));
    let _ = match lab.built.default_gateway {
        DefaultGateway::Global => writeln!(batch, "route add default via {}", gateway_address(0, Family::V6)),
        DefaultGateway::LinkLocal => writeln!(batch, "route add default via {} dev eth0", super::LINK_LOCAL_GATEWAY),
    };
    if lab.pod.is_some() {
        for family in Family::ALL {
            add_address(&mut batch, POD_GATEWAY.get(family), bits(family), "vpod");
        }
        batch.push_str("link set vpod up\n");
    }
    batch
}

fn pod_batch(lab: &TwoNic) -> String {
    let mut batch = format!(
        "link set lo up\nlink add eth0 index {FAR_INDEX} type veth peer name vpod index {POD_INDEX} netns {}\n",
        lab.node.name()
    );
    for family in Family::ALL {
        add_address(&mut batch, POD.get(family), bits(family), "eth0");
    }
    batch.push_str("link set eth0 up\n");
    for family in Family::ALL {
        let _ = writeln!(batch, "route add default via {}", POD_GATEWAY.get(family));
    }
    batch
}

fn switch_batch(lab: &TwoNic) -> String {
    let mut batch = String::from("link add br0 type bridge forward_delay 0 mcast_snooping 0\nlink set br0 up\n");
    let ports = [
        ("node", "eth0", node_index(0), &lab.node, Side::Node),
        ("gw0", "g0", FAR_INDEX, lab.gw(0).ns(), Side::Gateway),
        ("n2", "eth0", FAR_INDEX, lab.second_node(), Side::SecondNode),
    ];
    let mtu = lab.built.mtu[0];
    for (index, (port, peer, peer_index, netns, side)) in (SWITCH_INDEX..).zip(ports) {
        let (address, netns) = (mac_text(mac(0, side)), netns.name());
        let _ = writeln!(
            batch,
            "link add {port} index {index} mtu {mtu} type veth \
             peer name {peer} index {peer_index} address {address} mtu {mtu} netns {netns}\n\
             link set {port} master br0 up"
        );
    }
    batch
}

fn second_node_batch() -> String {
    let mut batch = String::from("link set lo up\n");
    for family in Family::ALL {
        add_address(&mut batch, SECOND_NODE.get(family), bits(family), "eth0");
        add_address(&mut batch, SECOND_NODE_POD.get(family), family.bits(), "lo");
    }
    batch.push_str("link set eth0 up\n");
    for family in Family::ALL {
        let (node, gateway) = (node_address(0, family), gateway_address(0, family));
        let _ = writeln!(batch, "route add {} via {node}\nroute add default via {gateway}", pod_subnet(family));
    }
    batch
}

/// The node's service translation: what a Service of type NodePort becomes.
fn service_ruleset(pod: Pod) -> String {
    let mut translate = String::new();
    for (ip, nfproto, family) in [("ip", "ipv4", Family::V4), ("ip6", "ipv6", Family::V6)] {
        let (cluster, pod) = (CLUSTER.get(family), std::net::SocketAddr::new(POD.get(family), POD_PORT));
        for protocol in ["tcp", "udp"] {
            let _ = writeln!(translate, "{ip} daddr {cluster} {protocol} dport {CLUSTER_PORT} dnat {ip} to {pod}");
            let _ = writeln!(
                translate,
                "meta nfproto {nfproto} fib daddr type local {protocol} dport {NODE_PORT} dnat {ip} to {pod}"
            );
        }
    }
    let mut masquerade = String::new();
    for (ip, family) in [("ip", Family::V4), ("ip6", Family::V6)] {
        let address = POD.get(family);
        // A pod that reaches itself by its service must see an answer that comes back through the node.
        let _ = writeln!(masquerade, "{ip} saddr {address} {ip} daddr {address} masquerade");
        if pod == Pod::Masqueraded {
            let _ = writeln!(masquerade, "{ip} daddr {address} ct status dnat masquerade");
        }
    }
    format!(
        "table inet lab_service {{
chain prerouting {{ type nat hook prerouting priority dstnat; policy accept;
{translate}
}}
chain output {{ type nat hook output priority -100; policy accept;
{translate}
}}
chain postrouting {{ type nat hook postrouting priority srcnat; policy accept;
{masquerade}
}}
}}
"
    )
}

fn node_index(nic: usize) -> u32 {
    NODE_INDEX + [0, 1][nic]
}

fn add_address(batch: &mut String, address: std::net::IpAddr, bits: u8, device: &str) {
    let nodad = if address.is_ipv6() { " nodad" } else { "" };
    let _ = writeln!(batch, "addr add {address}/{bits} dev {device}{nodad}");
}

fn bits(family: Family) -> u8 {
    match family {
        Family::V4 => V4_BITS,
        Family::V6 => V6_BITS,
    }
}

/// Waits until both ends of every wire carry packets.
fn wait_for_links(lab: &TwoNic) {
    let mut ends = vec![(&lab.node, "eth0"), (&lab.node, "eth1")];
    ends.extend((0..2).map(|nic| (lab.gw(nic).ns(), lab.gw(nic).device())));
    ends.extend(lab.second_node.iter().chain(&lab.pod).map(|netns| (netns, "eth0")));
    for (netns, device) in ends {
        let what = format!("{device} in {} runs", netns.name());
        netns.run(|| eventually(Duration::from_secs(5), &what, || link_runs(device)));
    }
}

/// The kernel gives a device its own link-local address once it has carrier.
fn link_runs(device: &str) -> Result<(), String> {
    /// `IFA_F_TENTATIVE` (linux/if_addr.h), in column 5 of the file, whose column 6 is the device.
    const TENTATIVE: u8 = 0x40;
    const GIVEN: &str = "fe800000000000000000000000000001";
    let listed = std::fs::read_to_string("/proc/thread-self/net/if_inet6").map_err(|error| error.to_string())?;
    let columns = listed.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let own = columns.filter(|column| column.get(5) == Some(&device)).find(|column| {
        let flags = column.get(4).and_then(|flags| u8::from_str_radix(flags, 16).ok());
        column[0].starts_with("fe80") && column[0] != GIVEN && flags.is_some_and(|flags| flags & TENTATIVE == 0)
    });
    own.map(|_| ()).ok_or(listed)
}
