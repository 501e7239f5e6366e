//! What the tests on real packets share: the manifests of the lab's two NICs and the product applied with them.
#![allow(dead_code, reason = "each test file uses a part of it")]

use tests::{
    TwoNic,
    product::{Product, described},
};

pub(crate) use tests::product::NIC_CLASSES;

/// The product on the lab's node with [`NIC_CLASSES`] applied, and no agent.
pub(crate) fn applied(lab: &TwoNic) -> Product {
    let product = Product::new(&lab.node);
    product.manifests(&[("nics.yaml", NIC_CLASSES)]);
    let output = product.apply();
    assert!(output.status.success(), "{}", described(&output));
    product
}
