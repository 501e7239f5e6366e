//! The daemon: its death changes nothing, manifests are followed, what others change is put right.
#![expect(clippy::unwrap_used, clippy::panic, reason = "what a test stands on fails the test")]

mod death;
mod drift;
#[path = "../support/host.rs"]
mod host;
mod manifests;
mod nics;
#[path = "../support/mod.rs"]
mod support;

use std::time::Duration;

use host::{metric, own_routes};
use support::NIC_CLASSES;
use tests::{
    TwoNic,
    product::{AgentGuard, Product},
};

const PATIENCE: Duration = Duration::from_secs(8);

use tests::product::SERVICES as ROUTES;

fn product(lab: &TwoNic) -> Product {
    let product = Product::new(&lab.node);
    product.manifests(&[("nics.yaml", NIC_CLASSES), ("routes.yaml", ROUTES)]);
    product
}

fn corrections(agent: &AgentGuard<'_>, kind: &str) -> u64 {
    metric(&agent.metrics(), &format!("nicpath_corrections_total{{kind=\"{kind}\"}}"))
}

fn routes_are_there(lab: &TwoNic) -> Result<(), Vec<String>> {
    let found = own_routes(&lab.node);
    let all = ["172.30.0.0/16 via 10.20.0.1", "fd00:30::/48 via fd00:20::1"]
        .iter()
        .all(|start| found.iter().any(|line| line.starts_with(start)));
    if all && found.len() == 2 { Ok(()) } else { Err(found.into_iter().collect()) }
}
