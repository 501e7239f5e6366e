//! What may be where. A path names a file, or, ending in `/`, everything in a folder.

/// A crate or module that only some files may name.
#[derive(Debug)]
pub(crate) struct Home {
    /// First path segments, as in `aya::Ebpf` or `use aya;`.
    pub(crate) names: &'static [&'static str],
    pub(crate) allowed: &'static [&'static str],
    pub(crate) cure: &'static str,
}

/// One module per outside world.
pub(crate) const HOMES: &[Home] = &[
    Home {
        names: &["aya", "aya_log", "aya_obj"],
        allowed: &["agent/src/dataplane.rs", "agent/src/dataplane/", "ebpf/", "tests/", "benches/"],
        cure: "go through agent/src/dataplane, the only module that knows aya",
    },
    Home {
        names: &["aya_ebpf", "aya_log_ebpf"],
        allowed: &["ebpf/src/main.rs", "ebpf/src/maps.rs", "ebpf/src/act.rs"],
        cure: "keep kernel helpers in the eBPF binary; the library must run on the host",
    },
    Home {
        names: &["rtnetlink", "netlink_packet_route", "netlink_packet_core", "netlink_proto", "netlink_sys"],
        allowed: &["agent/src/netlink.rs", "agent/src/netlink/"],
        cure: "go through agent/src/netlink, the only module that talks netlink",
    },
];

/// Modules that only decide: what they need to know is an argument.
pub(crate) const PURE: &[&str] = &[
    "agent/src/api/",
    "agent/src/config.rs",
    "agent/src/config/",
    "agent/src/merge.rs",
    "agent/src/merge/",
    "agent/src/inventory.rs",
    "agent/src/inventory/",
    "agent/src/desired.rs",
    "agent/src/desired/",
    "agent/src/plan.rs",
    "agent/src/plan/",
    "agent/src/guard.rs",
    "agent/src/guard/",
    "agent/src/status.rs",
    "agent/src/status/",
    "agent/src/tables.rs",
    "agent/src/hook.rs",
    "agent/src/backoff.rs",
];

/// What a pure module may not name anywhere: other worlds and clocks.
pub(crate) const IMPURE_NAMES: &[&str] =
    &["aya", "tokio", "rtnetlink", "netlink_packet_route", "Instant", "SystemTime"];

/// Files that may contain `unsafe`, and why.
pub(crate) const UNSAFE: &[(&str, &str)] = &[
    ("ebpf/src/abi.rs", "aya::Pod for the types shared with the kernel, whose layout const asserts fix"),
    ("ebpf/src/packet.rs", "headers read from bytes whose length was checked, without a copy"),
    ("ebpf/src/main.rs", "entry points and licence section of the eBPF binary"),
    ("ebpf/src/act.rs", "kernel helpers, packet and map values by pointer"),
    ("agent/src/dataplane/raw.rs", "the bpf(2) commands aya has no function for"),
    ("benches/src/handmade.rs", "loading and pinning programs of a few instructions"),
    ("tests/src/sys.rs", "system calls that have no safe form"),
];

/// A longer file does too much.
pub(crate) const MOST_LINES: usize = 600;
