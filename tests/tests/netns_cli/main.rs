//! The commands as their users meet them: exit codes, errors that name the cure, `check` and `--dry-run`.
#![expect(clippy::unwrap_used, clippy::panic, reason = "what a test stands on fails the test")]

mod check;
mod dry_run;
mod exits;
#[path = "../support/host.rs"]
mod host;
#[path = "../support/mod.rs"]
mod support;

use support::NIC_CLASSES;
use tests::{Netns, product::Product};

const CLASS: &str = "apiVersion: nicpath.dev/v1alpha1\nkind: NicClass\n";
const ENTRY: &str = "apiVersion: nicpath.dev/v1alpha1\nkind: RouteEntry\n";
const USER: &str = "apiVersion: nicpath.dev/v1alpha1
kind: NicClass
metadata: {name: user}
spec: {match: {names: [eth0]}}
";
const MGMT: &str = "apiVersion: nicpath.dev/v1alpha1
kind: NicClass
metadata: {name: mgmt}
spec: {match: {names: [eth1]}}
";
const ROUTES: &str = "apiVersion: nicpath.dev/v1alpha1
kind: RouteEntry
metadata: {name: services}
spec: {destinations: [172.30.0.0/16, \"fd00:30::/48\"], nic: {class: mgmt}}
";

/// A node with nothing to manage, and the product's directories on it.
fn node() -> (Netns, Product) {
    let node = Netns::new("node");
    let product = Product::new(&node);
    product.manifests(&[("nics.yaml", NIC_CLASSES)]);
    (node, product)
}
