//! Every reason a condition, a refusal or a validation error can carry, in one place.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Why something is as it is: one cause each. The variant's name is the CamelCase string that users see.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Reason {
    // a file or a document
    /// The file or directory cannot be read.
    Unreadable,
    NotUtf8,
    ByteOrderMark,
    /// More than 4 MiB in one file.
    FileTooLarge,
    NotYaml,
    DuplicateKey,
    /// `apiVersion` or `kind` is missing or not one of ours.
    UnknownKind,
    /// Two objects of one kind with one name.
    DuplicateObject,
    TooManyObjects,

    // the shape of an object
    UnknownField,
    MissingField,
    WrongType,
    /// A word outside a closed set.
    UnknownValue,

    // one field
    InvalidName,
    InvalidSelector,
    InvalidCidr,
    /// A CIDR whose address has bits set beyond its prefix length.
    HostBits,
    InvalidAddress,
    /// An IPv4 address written as IPv6 (`::ffff:10.0.0.1`).
    MappedAddress,
    InvalidMac,
    InvalidGlob,
    InvalidPort,
    InvalidMtu,
    EmptyMatch,
    /// Two gateways of one family.
    TwoGateways,
    /// An address of a family that none of the destinations has.
    FamilyMismatch,
    /// A destination that holds its own gateway.
    SelfCovering,
    /// The field is part of the contract, what it asks for is not built yet.
    Unsupported,

    // objects together
    DuplicateDestination,
    ProtectedDestination,
    TooManyRoutes,
    /// A NodeRouteConfig of the same source decides for this node.
    Superseded,
    /// The NIC or NicClass a route names does not exist here.
    UnknownNic,

    // objects and the host
    /// No NIC matches a NicClass, or more than one.
    NoSuchNic,
    Ambiguous,
    /// Two NicClasses claim one NIC or one prefix.
    ClaimedTwice,
    GatewayNotOnNic,
    NoGateway,
    SourceNotOnNic,
    NotEthernet,
    /// A NIC on top of another managed NIC.
    Stacked,
    TooManyNics,
    TableFull,
    StrictArpWithVip,
    /// A foreign route has the same destination.
    Conflict,
    /// Replies could leave by a device that no NicClass covers.
    UncoveredDevice,
    /// Another program or daemon keeps changing what we own.
    Contested,
    ApplyFailed,
    RolledBack,
    NicDown,

    // nothing is wrong
    AsExpected,
    Pending,
    Applied,

    /// A reason of a newer version than this binary.
    #[serde(other)]
    Other,
}

impl Reason {
    /// What a user can do about it, where the place that found it has nothing more exact to say.
    pub fn cure(self) -> &'static str {
        match self {
            Self::Unreadable => "make it a readable regular file, or remove it",
            Self::NotUtf8 => "save the file as UTF-8",
            Self::ByteOrderMark => "save the file as UTF-8 without a byte order mark",
            Self::FileTooLarge => "split the file",
            Self::NotYaml => "correct the syntax",
            Self::DuplicateKey => "keep one of the two",
            Self::UnknownKind => "keep only objects of nicpath.dev/v1alpha1 in this directory",
            Self::DuplicateObject => "rename or remove one of the two",
            Self::TooManyObjects => "put several destinations into one RouteEntry",
            Self::UnknownField => "correct the name or remove the field",
            Self::MissingField => "add the field",
            Self::WrongType | Self::UnknownValue => "correct the value",
            Self::InvalidName => "use lower case letters, digits, `-` and `.`, at most 253 characters",
            Self::InvalidSelector => "write it like a Kubernetes label selector",
            Self::InvalidCidr => "write an address and a prefix length like 10.20.0.0/16 or fd00:20::/48",
            Self::HostBits => "set the host bits to zero",
            Self::InvalidAddress => "write an address like 10.20.0.1 or fd00:20::1",
            Self::MappedAddress => "write the IPv4 form",
            Self::InvalidMac => "write six two-digit hexadecimal bytes like 02:00:00:00:00:01",
            Self::InvalidGlob => "write an interface name, with `*` and `?` as the only wildcards",
            Self::InvalidPort => "write a port like \"22\" or a range like \"30000-32767\"",
            Self::InvalidMtu => "write 68 to 65535 bytes, at least 1280 for IPv6",
            Self::EmptyMatch => "give at least one of names, macs and subnets",
            Self::TwoGateways => "keep one gateway for each address family",
            Self::FamilyMismatch => "give an address of the destinations' family, or leave it out",
            Self::SelfCovering => "leave the gateway out, or name a narrower destination without it",
            Self::Unsupported => "remove the field",
            Self::DuplicateDestination => "remove it here or there, or give one a higher priority",
            Self::ProtectedDestination => "name a narrower destination, or say so in `allow` if it is meant",
            Self::TooManyRoutes => "aggregate destinations",
            Self::Superseded => "remove the NodeRouteConfig, or the objects beside it",
            Self::UnknownNic => "name a NicClass that selects this node, or a NIC that it has",
            Self::NoSuchNic => "correct `match`, or exclude this node by `nodeSelector`",
            Self::Ambiguous => "make `match` select one NIC",
            Self::ClaimedTwice => "make `match` or `nodeSelector` of the two exclude each other",
            Self::GatewayNotOnNic => "name a gateway inside a subnet of the NIC",
            Self::NoGateway => "declare `gateways`",
            Self::SourceNotOnNic => "name an address that the node has",
            Self::NotEthernet => "match an Ethernet NIC",
            Self::Stacked => "match the upper NIC or the lower one",
            Self::TooManyNics => "match fewer NICs",
            Self::TableFull => "aggregate prefixes, or remove some",
            Self::StrictArpWithVip => "remove the address from lo, or set strictARP to false",
            Self::Conflict => "remove the foreign route, or the destination",
            Self::UncoveredDevice => "add a NicClass that matches the device",
            Self::Contested => "stop the other program from changing it",
            Self::ApplyFailed => "see the agent's log",
            Self::RolledBack => "change the spec: the last one cut the node off",
            Self::NicDown => "bring the NIC up",
            Self::AsExpected | Self::Applied => "nothing to do",
            Self::Pending => "wait",
            Self::Other => "see the message",
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // the variant's name is the string of the contract
        fmt::Debug::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_serialised_form_are_one() {
        assert_eq!(Reason::HostBits.to_string(), "HostBits");
        assert_eq!(serde_json::to_value(Reason::HostBits).unwrap(), "HostBits");
    }

    #[test]
    fn a_reason_of_a_newer_version_still_decodes() {
        assert_eq!(serde_json::from_value::<Reason>("FromTheFuture".into()).unwrap(), Reason::Other);
    }
}
