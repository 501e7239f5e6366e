//! What the tests on real packets share: the manifests of the lab's two NICs and the product applied with them.
#![allow(dead_code, reason = "each test file uses a part of it")]

use tests::{
    TwoNic,
    product::{Product, described},
};

/// A NicClass for each NIC of the lab, with its gateways.
pub(crate) const NIC_CLASSES: &str = r#"
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

/// The product on the lab's node with [`NIC_CLASSES`] applied, and no agent.
pub(crate) fn applied(lab: &TwoNic) -> Product {
    let product = Product::new(&lab.node);
    product.manifests(&[("nics.yaml", NIC_CLASSES)]);
    let output = product.apply();
    assert!(output.status.success(), "{}", described(&output));
    product
}
