//! Text of one field → its value.

use std::{
    net::{IpAddr, Ipv6Addr},
    ops::RangeInclusive,
};

use ipnet::IpNet;

use super::{Flaw, Reason};
use crate::inventory::Mac;

/// A CIDR with zero host bits.
pub(super) fn cidr(text: &str) -> Result<IpNet, Flaw> {
    let invalid = |message: &str| Flaw::new(Reason::InvalidCidr, message);
    let Some((address_text, mask)) = text.split_once('/') else {
        return Err(match text.parse::<IpAddr>() {
            Ok(address) => invalid("has no prefix length").cured_by(format!("write {}", IpNet::from(address))),
            Err(_) => invalid("is not a CIDR"),
        });
    };
    let address = plain_address(address_text, Reason::InvalidCidr)?;
    let most = if address.is_ipv4() { 32 } else { 128 };
    let length = match mask.parse::<u8>() {
        // `+8` and `08` parse too, and others read the latter as octal
        Ok(length) if length <= most && length.to_string() == mask => length,
        _ => {
            let flaw = invalid("has no valid prefix length");
            return Err(match mask.parse().ok().and_then(|mask| IpNet::with_netmask(address, mask).ok()) {
                Some(net) => flaw.cured_by(format!("write {}", net.trunc())),
                None => flaw.cured_by(format!("write a number from 0 to {most} after the `/`")),
            });
        }
    };
    let net = IpNet::new(address, length).map_err(|_| invalid("has no valid prefix length"))?;
    if let IpAddr::V6(v6) = address
        && let Some(v4) = v6.to_ipv4_mapped()
    {
        let flaw = Flaw::new(Reason::MappedAddress, "is an IPv4 network written as IPv6");
        return Err(match length.checked_sub(96).and_then(|length| IpNet::new(v4.into(), length).ok()) {
            Some(net) => flaw.cured_by(format!("write {}", net.trunc())),
            None => flaw,
        });
    }
    if net.trunc() != net {
        return Err(Flaw::new(Reason::HostBits, format!("has bits set beyond its prefix length of {length}"))
            .cured_by(format!("write {}, or {} for that one address", net.trunc(), IpNet::from(address))));
    }
    Ok(net)
}

/// A CIDR of sources that a NIC may own: something a NIC can have as an address.
pub(super) fn source_prefix(text: &str) -> Result<IpNet, Flaw> {
    let net = cidr(text)?;
    if net.prefix_len() == 0 {
        return Err(Flaw::new(Reason::InvalidCidr, "holds every address of its family")
            .cured_by("name the addresses that belong to this NIC"));
    }
    unicast(net.addr()).map(|()| net)
}

/// A unicast address, as next hop or source.
pub(super) fn unicast_address(text: &str) -> Result<IpAddr, Flaw> {
    if let Some((address, _)) = text.split_once('/')
        && address.parse::<IpAddr>().is_ok()
    {
        return Err(Flaw::new(Reason::InvalidAddress, "has a prefix length").cured_by(format!("write {address}")));
    }
    let address = plain_address(text, Reason::InvalidAddress)?;
    if let IpAddr::V6(v6) = address
        && let Some(v4) = v6.to_ipv4_mapped()
    {
        return Err(
            Flaw::new(Reason::MappedAddress, "is an IPv4 address written as IPv6").cured_by(format!("write {v4}"))
        );
    }
    unicast(address).map(|()| address)
}

fn plain_address(text: &str, reason: Reason) -> Result<IpAddr, Flaw> {
    text.parse().map_err(|_| match text.split_once('%') {
        Some((address, zone)) if address.parse::<Ipv6Addr>().is_ok() => {
            Flaw::new(reason, "has a zone").cured_by(format!("leave out %{zone}: the NIC is named elsewhere"))
        }
        _ if reason == Reason::InvalidCidr => Flaw::new(reason, "is not a CIDR"),
        _ => Flaw::new(reason, "is not an IP address"),
    })
}

fn unicast(address: IpAddr) -> Result<(), Flaw> {
    let what = if address.is_unspecified() {
        "is the unspecified address"
    } else if address.is_loopback() {
        "is a loopback address"
    } else if address.is_multicast() {
        "is a multicast address"
    } else if address == IpAddr::from([255, 255, 255, 255]) {
        "is the broadcast address"
    } else {
        return Ok(());
    };
    Err(Flaw::new(Reason::InvalidAddress, what).cured_by("write a unicast address"))
}

/// The MAC address of a NIC.
pub(super) fn mac(text: &str) -> Result<Mac, Flaw> {
    let invalid = || Flaw::new(Reason::InvalidMac, "is not a MAC address");
    let mac: Mac = text.parse().map_err(|_| invalid())?;
    // the number parser takes `+2` for 2
    if !mac.to_string().eq_ignore_ascii_case(text) {
        return Err(invalid());
    }
    if mac.0[0] & 1 == 1 {
        return Err(Flaw::new(Reason::InvalidMac, "is a multicast address, which no NIC has"));
    }
    if mac.0 == [0; 6] {
        return Err(Flaw::new(Reason::InvalidMac, "is all zero, which no NIC has"));
    }
    Ok(mac)
}

/// Longest interface name (IFNAMSIZ without the terminating zero).
const INTERFACE_NAME_BYTES: usize = 15;

/// An interface name.
pub(super) fn interface_name(text: &str) -> Result<String, Flaw> {
    if text.contains(['*', '?']) {
        return Err(Flaw::new(Reason::InvalidName, "is a glob, where one interface name is needed")
            .cured_by("write the name in full, or name a NicClass: {class: NAME}"));
    }
    glob(text).map_err(|flaw| Flaw { reason: Reason::InvalidName, ..flaw })
}

/// A glob over interface names, with `*` and `?`.
pub(super) fn glob(text: &str) -> Result<String, Flaw> {
    let flaw = |message: String| Err(Flaw::new(Reason::InvalidGlob, message));
    if text.is_empty() {
        return flaw("is empty".into());
    }
    if text == "." || text == ".." {
        return flaw("is no interface name".into());
    }
    // dev_valid_name() in net/core/dev.c, and what people try as pattern syntax
    if let Some(bad) = text.chars().find(|c| {
        c.is_whitespace()
            || c.is_control()
            || matches!(c, '/' | ':' | '[' | ']' | '{' | '}' | '\\' | '!' | '^' | '$' | '|')
    }) {
        return flaw(format!("holds {bad:?}, which is neither part of an interface name nor a wildcard"));
    }
    if text.chars().filter(|c| *c != '*').map(char::len_utf8).sum::<usize>() > INTERFACE_NAME_BYTES {
        return flaw(format!("fits no interface name, which has at most {INTERFACE_NAME_BYTES} bytes"));
    }
    Ok(text.to_owned())
}

/// A port or a range of ports.
pub(super) fn ports(text: &str) -> Result<RangeInclusive<u16>, Flaw> {
    let port = |text: &str| match text.parse::<u16>() {
        Ok(port) if port > 0 && port.to_string() == text => Ok(port),
        _ => Err(Flaw::new(Reason::InvalidPort, "is not a port or a range of ports from 1 to 65535")),
    };
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let (first, last) = (port(first)?, port(last)?);
    if first > last {
        return Err(Flaw::new(Reason::InvalidPort, "is a range that ends before it begins")
            .cured_by(format!("write \"{last}-{first}\"")));
    }
    Ok(first..=last)
}

/// A DNS-1123 subdomain (RFC 1123 section 2.1), as object and network names are.
pub fn dns_subdomain(text: &str) -> Result<(), String> {
    let label = |label: &str| {
        !label.is_empty()
            && label.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    if text.is_empty() {
        Err("is empty".to_owned())
    } else if text.len() > 253 {
        Err("is longer than 253 characters".to_owned())
    } else if !text.split('.').all(label) {
        Err("is not a DNS-1123 subdomain".to_owned())
    } else {
        Ok(())
    }
}

/// The name of an object or a network.
pub(super) fn object_name(text: &str) -> Result<String, Flaw> {
    dns_subdomain(text).map(|()| text.to_owned()).map_err(|message| Flaw::new(Reason::InvalidName, message))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cidr_flaw(text: &str) -> (Reason, String) {
        let flaw = cidr(text).unwrap_err();
        (flaw.reason, flaw.cure)
    }

    #[test]
    fn a_cidr_flaw_says_what_to_write() {
        for (text, reason, cure) in [
            ("172.30.5.0/16", Reason::HostBits, "write 172.30.0.0/16, or 172.30.5.0/32 for that one address"),
            ("fd00:30::1/48", Reason::HostBits, "write fd00:30::/48, or fd00:30::1/128 for that one address"),
            ("10.0.0.1", Reason::InvalidCidr, "write 10.0.0.1/32"),
            ("fd00::1", Reason::InvalidCidr, "write fd00::1/128"),
            ("10.1.2.0/255.255.255.0", Reason::InvalidCidr, "write 10.1.2.0/24"),
            ("10.0.0.0/33", Reason::InvalidCidr, "write a number from 0 to 32 after the `/`"),
            ("10.0.0.0/08", Reason::InvalidCidr, "write a number from 0 to 32 after the `/`"),
            ("10.0.0.0/", Reason::InvalidCidr, "write a number from 0 to 32 after the `/`"),
            ("fd00::/129", Reason::InvalidCidr, "write a number from 0 to 128 after the `/`"),
            ("::ffff:10.0.0.0/104", Reason::MappedAddress, "write 10.0.0.0/8"),
            ("::ffff:0:0/90", Reason::MappedAddress, "write the IPv4 form"),
            ("fe80::%eth1/64", Reason::InvalidCidr, "leave out %eth1: the NIC is named elsewhere"),
        ] {
            assert_eq!(cidr_flaw(text), (reason, cure.to_owned()), "{text}");
        }
        for text in ["", "example.com", "010.0.0.0/8", "10.0.0/8", "10.0.0.0/8/8", " 10.0.0.0/8"] {
            assert_eq!(cidr_flaw(text).0, Reason::InvalidCidr, "{text}");
        }
    }

    #[test]
    fn well_formed_cidrs_of_both_families_pass() {
        for text in ["172.30.0.0/16", "10.0.0.1/32", "0.0.0.0/0", "fd00:30::/48", "::/0", "fe80::/10"] {
            assert_eq!(cidr(text).unwrap().to_string(), text);
        }
    }

    #[test]
    fn next_hops_are_unicast() {
        for text in ["10.20.0.1", "fe80::1", "169.254.1.1", "fd00:20::1"] {
            assert!(unicast_address(text).is_ok(), "{text}");
        }
        for (text, reason) in [
            ("0.0.0.0", Reason::InvalidAddress),
            ("::1", Reason::InvalidAddress),
            ("224.0.0.1", Reason::InvalidAddress),
            ("ff02::1", Reason::InvalidAddress),
            ("255.255.255.255", Reason::InvalidAddress),
            ("10.20.0.1/24", Reason::InvalidAddress),
            ("fe80::1%eth1", Reason::InvalidAddress),
            ("gateway", Reason::InvalidAddress),
            ("::ffff:10.0.0.1", Reason::MappedAddress),
        ] {
            assert_eq!(unicast_address(text).unwrap_err().reason, reason, "{text}");
        }
    }

    #[test]
    fn globs_are_interface_names_with_wildcards() {
        for text in ["eth1", "ens*", "en?p*", "*", "bond0.100", "veryverylongna*"] {
            assert!(glob(text).is_ok(), "{text}");
        }
        for text in ["", "eth[01]", "eth 1", "a/b", "sixteen-bytes-xx", "^eth", ".."] {
            assert_eq!(glob(text).unwrap_err().reason, Reason::InvalidGlob, "{text}");
        }
        assert_eq!(interface_name("eth*").unwrap_err().reason, Reason::InvalidName);
    }

    #[test]
    fn ports_are_numbers_or_rising_ranges() {
        assert_eq!(ports("22").unwrap(), 22..=22);
        assert_eq!(ports("30000-32767").unwrap(), 30000..=32767);
        for text in ["", "0", "65536", "ssh", "1-", "-1", "1-2-3", "022", "32767-30000"] {
            assert_eq!(ports(text).unwrap_err().reason, Reason::InvalidPort, "{text}");
        }
    }

    #[test]
    fn macs_are_those_a_nic_can_have() {
        assert!(mac("02:00:00:00:00:01").is_ok());
        for text in
            ["02-00-00-00-00-01", "02:00:00:00:00", "ff:ff:ff:ff:ff:ff", "00:00:00:00:00:00", "+2:00:00:00:00:01"]
        {
            assert_eq!(mac(text).unwrap_err().reason, Reason::InvalidMac, "{text}");
        }
    }

    #[test]
    fn names_are_dns_subdomains() {
        for text in ["mgmt", "a.b-c.d9", &"a".repeat(253)] {
            assert!(dns_subdomain(text).is_ok(), "{text}");
        }
        for text in ["", "Mgmt", "a_b", "-a", "a-", "a..b", ".a", &"a".repeat(254)] {
            assert!(dns_subdomain(text).is_err(), "{text}");
        }
    }
}
