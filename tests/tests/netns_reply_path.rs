//! Replies leave by the NIC their request came in on: field cases 1, 12, 16, 20 and 33 for owned addresses, and the very
//! first packet to a cold NIC.

use std::{
    net::SocketAddr,
    time::Duration,
};

use tests::{
    Family, TwoNic,
    lab::{CLIENT, node_address},
    product::Product,
    traffic::{Checker, Target, TcpEcho, UdpEcho},
};

const FAMILIES: [Family; 2] = Family::ALL;

const NIC_CLASSES: &str = r#"
apiVersion: nicpath.dev/v1alpha1
kind: NicClass
metadata: {name: user}
spec: {match: {names: [eth0]}, gateways: [10.10.0.1, "fd00:10::1"]}
---
apiVersion: nicpath.dev/v1alpha1
kind: NicClass
metadata: {name: mgmt}
spec: {match: {names: [eth1]}, gateways: [10.20.0.1, "fd00:20::1"]}
"#;

fn applied(lab: &TwoNic) -> Product {
    let product = Product::new(&lab.node);
    product.manifests(&[("nics.yaml", NIC_CLASSES)]);
    let output = product.apply();
    assert!(output.status.success(), "{}", tests::product::described(&output));
    product
}

#[test]
fn every_check_on_both_nics_is_answered_by_the_nic_asked() {
    let lab = TwoNic::builder().build();
    let _product = applied(&lab);
    let mut servers = (Vec::new(), Vec::new());
    let mut targets = Vec::new();
    for nic in [0, 1] {
        for family in FAMILIES {
            let address = node_address(nic, family);
            let client = CLIENT.get(family);
            let tcp = SocketAddr::new(address, 80);
            let udp = SocketAddr::new(address, 5356);
            servers.0.push(TcpEcho::start(&lab.node, tcp));
            servers.1.push(UdpEcho::start(&lab.node, udp));
            let gateway = lab.gw(nic).ns();
            targets.push(Target::tcp(gateway, SocketAddr::new(client, 0), tcp));
            targets.push(Target::udp(gateway, SocketAddr::new(client, 0), udp));
            targets.push(Target::ping(gateway, client, address));
        }
    }
    let checker = Checker::start(targets, 20);
    tests::wait::eventually(Duration::from_secs(30), "600 checks", || (checker.done() >= 600).then_some(()));
    for report in checker.stop() {
        assert_eq!(report.failed, 0, "{report:?}");
    }
    for nic in [0, 1] {
        assert_eq!(lab.gw(nic).counter("wrong_source"), 0);
        assert!(lab.gw(nic).counter("from_node") > 0);
    }
}
