use std::{fmt, io};

use rtnetlink::packet_core::DecodeError;

use crate::inventory::Link;

/// What went wrong between us and the kernel's routing socket, with the `ip` command that asks for the same.
#[derive(Debug, thiserror::Error)]
pub enum NetlinkError {
    #[error("cannot open a routing netlink socket")]
    Open { source: io::Error },
    /// The kernel refused the request.
    #[error("`{command}` was refused{}", said(.message.as_deref()))]
    Refused {
        command: String,
        failure: NetlinkFailure,
        /// The kernel's own sentence (extended acknowledgement), if it gave one.
        message: Option<String>,
        source: io::Error,
    },
    /// Tables changed during every one of the attempts to read them (NLM_F_DUMP_INTR).
    #[error("`{command}` was interrupted by changes {attempts} times in a row")]
    Interrupted { command: String, attempts: u32 },
    /// The answer could not be received; what the kernel did with the request is not known.
    #[error("the answer to `{command}` was lost")]
    Lost { command: String, source: io::Error },
    #[error("the answer to `{command}` is not as the kernel documents it")]
    Undecodable { command: String, source: DecodeError },
}

/// Shown after "was refused": the kernel's sentence in its own words.
fn said(message: Option<&str>) -> String {
    message.map(|m| format!(": {m}")).unwrap_or_default()
}

impl NetlinkError {
    pub(super) fn refused(command: String, errno: i32, message: Option<String>) -> Self {
        let source = io::Error::from_raw_os_error(errno);
        Self::Refused { command, failure: NetlinkFailure::of(errno), message, source }
    }

    /// Names the link as the cause where it is: of an IPv4 gateway on a link that is down or gone the kernel says
    /// nothing but "unreachable".
    pub(super) fn seen_from(mut self, link: Option<&Link>) -> Self {
        if let Self::Refused { failure: failure @ NetlinkFailure::GatewayUnreachable, .. } = &mut self {
            match link {
                None => *failure = NetlinkFailure::LinkGone,
                Some(link) if !link.up => *failure = NetlinkFailure::LinkDown,
                Some(_) => {}
            }
        }
        self
    }

    /// The kind of failure, for callers that act on it.
    pub fn failure(&self) -> NetlinkFailure {
        match self {
            Self::Refused { failure, .. } => *failure,
            Self::Open { .. } | Self::Interrupted { .. } | Self::Lost { .. } | Self::Undecodable { .. } => {
                NetlinkFailure::Other
            }
        }
    }

    /// The `ip` command that asks the kernel for the same; None if no request was made yet.
    pub fn command(&self) -> Option<&str> {
        match self {
            Self::Open { .. } => None,
            Self::Refused { command, .. }
            | Self::Interrupted { command, .. }
            | Self::Lost { command, .. }
            | Self::Undecodable { command, .. } => Some(command),
        }
    }

    /// What an operator can do about it, as one sentence.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Open { .. } => "check the limit on open files and that the kernel has CONFIG_NET",
            Self::Refused { failure, .. } => failure.hint(),
            Self::Interrupted { .. } => "something changes links or routes without pause: `ip monitor` shows what",
            Self::Lost { .. } => "read the tables again to see what was done",
            Self::Undecodable { .. } => "run the command by hand and report its output with the kernel version",
        }
    }
}

/// Why the kernel refused, as far as its error number tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NetlinkFailure {
    /// CAP_NET_ADMIN is missing in the user namespace that owns the network namespace.
    NotPermitted,
    /// A route of this destination and metric exists, whoever owns it.
    Exists,
    NotFound,
    /// The link does not exist (any more).
    LinkGone,
    /// The link is administratively down.
    LinkDown,
    /// No prefix of the link holds the gateway.
    GatewayUnreachable,
    Other,
}

impl NetlinkFailure {
    fn of(errno: i32) -> Self {
        match errno {
            libc::EPERM | libc::EACCES => Self::NotPermitted,
            libc::EEXIST => Self::Exists,
            libc::ENOENT | libc::ESRCH => Self::NotFound,
            libc::ENODEV | libc::ENXIO => Self::LinkGone,
            libc::ENETDOWN => Self::LinkDown,
            libc::ENETUNREACH | libc::EHOSTUNREACH => Self::GatewayUnreachable,
            _ => Self::Other,
        }
    }

    /// What an operator can do about it, as one sentence.
    pub fn hint(self) -> &'static str {
        match self {
            Self::NotPermitted => "run it as root or with CAP_NET_ADMIN",
            Self::Exists => "a route with this destination and metric exists: `ip route show` tells whose it is",
            Self::NotFound => "it is gone already: `ip route show` lists what is there",
            Self::LinkGone => "the link is gone: `ip link` lists those there are",
            Self::LinkDown => "set the link up first: `ip link set dev NAME up`",
            Self::GatewayUnreachable => {
                "the gateway lies in no prefix of this link: give the link an address of the gateway's subnet, or correct \
                 the gateway"
            }
            Self::Other => "the command run by hand gives the kernel's reason",
        }
    }
}

impl fmt::Display for NetlinkFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotPermitted => "not permitted",
            Self::Exists => "exists",
            Self::NotFound => "not found",
            Self::LinkGone => "link gone",
            Self::LinkDown => "link down",
            Self::GatewayUnreachable => "gateway unreachable",
            Self::Other => "refused",
        })
    }
}
