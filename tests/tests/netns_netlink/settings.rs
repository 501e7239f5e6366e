//! Settings below /proc/sys/net.

use agent::{
    inventory::{SysctlFamily, SysctlKey},
    sysctl::Sysctls,
};

use crate::node;

#[test]
fn a_setting_of_a_nic_is_written_and_read_on_the_real_tree() {
    let netns = node();
    let key = |family, name: &str| SysctlKey { family, nic: "eth1".into(), name: name.into() };
    let (announce, hops) = (key(SysctlFamily::Ipv4, "arp_announce"), key(SysctlFamily::Ipv6, "hop_limit"));
    let unknown = key(SysctlFamily::Ipv4, "no_such_setting");
    let sysctls = Sysctls::default();
    netns.run(|| {
        sysctls.write(&announce, "2").unwrap();
        let values = sysctls.read([&announce, &hops, &unknown]).unwrap();
        assert_eq!(
            values.into_iter().collect::<Vec<_>>(),
            [(announce.clone(), "2".into()), (hops.clone(), "64".into())]
        );
        let error = sysctls.write(&announce, "two").unwrap_err().to_string();
        assert!(
            error.contains("`two`") && error.contains("eth1/arp_announce") && error.contains("does not take"),
            "{error}"
        );
    });
    assert_eq!(netns.read_sysctl("net/ipv4/conf/eth1/arp_announce"), "2");
}

#[test]
fn a_read_only_proc_is_told_as_such() {
    use nix::{
        mount::{MsFlags, mount},
        sched::{CloneFlags, unshare},
    };
    let netns = node();
    let key = SysctlKey { family: SysctlFamily::Ipv4, nic: "eth1".into(), name: "rp_filter".into() };
    let error = netns.run(|| {
        const NO: Option<&str> = None;
        const TREE: &str = "/proc/sys/net";
        unshare(CloneFlags::CLONE_NEWNS).unwrap();
        mount(NO, "/", NO, MsFlags::MS_REC | MsFlags::MS_PRIVATE, NO).unwrap();
        mount(Some(TREE), TREE, NO, MsFlags::MS_BIND, NO).unwrap();
        mount(NO, TREE, NO, MsFlags::MS_BIND | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY, NO).unwrap();
        Sysctls::default().write(&key, "2").unwrap_err().to_string()
    });
    assert!(error.contains("ipv4/conf/eth1/rp_filter") && error.contains("read-only"), "{error}");
}
