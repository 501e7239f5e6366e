//! The programs: parse, look up, decide, act. On any other target than BPF this is an empty program, so that the
//! whole workspace compiles, is linted and tested without the eBPF tool chain.
#![cfg_attr(target_arch = "bpf", no_std, no_main)]

#[cfg(target_arch = "bpf")]
mod act;
#[cfg(target_arch = "bpf")]
mod maps;

#[cfg(not(target_arch = "bpf"))]
fn main() {}

#[cfg(target_arch = "bpf")]
mod programs {
    #![allow(unsafe_code, reason = "program and licence sections are unsafe attributes")]

    use aya_ebpf::{macros::classifier, programs::TcContext};
    use ebpf::{
        abi::{EGRESS, INGRESS, MARK_NETWORK, MARK_TO_NODE},
        packet::{Parsed, parse},
        steer::{self, Decision, Fate, Rule},
        verdict::{Note, TC_NEXT, Verdict},
    };

    use crate::act::{Skb, Tries, tables};

    /// Arrival: writes down, for every packet, the network it came from and whether it was addressed to the node.
    #[classifier]
    pub(crate) fn ingress(context: TcContext) -> i32 {
        let skb = Skb { context: &context };
        let Some(tables) = tables() else {
            return TC_NEXT;
        };
        let Some(slot) = tables.slot_of(skb.ifindex()) else {
            return TC_NEXT;
        };
        let Some(nic) = tables.nic(slot) else {
            return TC_NEXT;
        };
        let network = nic.network as u16 & MARK_NETWORK;
        let received = |note| Decision { fate: Fate::Pass(Verdict::Received), rule: Rule::Kernel, note };
        if skb.has_vlan_metadata() {
            skb.set_tc_index(network);
            return skb.settle(INGRESS, slot, None, &Decision::untouched(None));
        }
        match parse(&skb.bytes()) {
            Parsed::Ip(packet) => {
                let to_node = if steer::is_to_node(tables, &Tries, &packet) { MARK_TO_NODE } else { 0 };
                skb.set_tc_index(network | to_node);
                skb.settle(INGRESS, slot, None, &received(None))
            }
            Parsed::Exempt => {
                skb.set_tc_index(network);
                skb.settle(INGRESS, slot, None, &Decision::untouched(None))
            }
            Parsed::Malformed => {
                skb.set_tc_index(network);
                skb.settle(INGRESS, slot, None, &Decision::untouched(Some(Note::Parse)))
            }
        }
    }

    /// Departure: the rules of design section 5.
    #[classifier]
    pub(crate) fn egress(context: TcContext) -> i32 {
        let skb = Skb { context: &context };
        let Some(tables) = tables() else {
            return TC_NEXT;
        };
        let Some(slot) = tables.slot_of(skb.ifindex()) else {
            return TC_NEXT;
        };
        let Some(nic) = tables.nic(slot) else {
            return TC_NEXT;
        };
        // A tag says that a device above has decided about the packet already.
        if skb.has_vlan_metadata() {
            return skb.settle(EGRESS, slot, None, &Decision::untouched(None));
        }
        let frame = skb.bytes();
        match parse(&frame) {
            Parsed::Ip(packet) => {
                let decision = steer::egress(&frame, tables, &Tries, slot, nic, &packet);
                #[cfg(feature = "log")]
                aya_log_ebpf::debug!(&context, "egress slot {} protocol {}", slot, packet.protocol);
                skb.settle(EGRESS, slot, Some(&packet), &decision)
            }
            Parsed::Exempt => skb.settle(EGRESS, slot, None, &Decision::untouched(None)),
            Parsed::Malformed => skb.settle(EGRESS, slot, None, &Decision::untouched(Some(Note::Parse))),
        }
    }

    #[cfg(not(test))]
    #[panic_handler]
    fn panic(_info: &core::panic::PanicInfo<'_>) -> ! {
        // No path leads here: the verifier refuses a program in which one does.
        loop {}
    }

    #[unsafe(link_section = "license")]
    #[unsafe(no_mangle)]
    static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
}
