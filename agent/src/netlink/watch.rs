use std::{collections::BTreeSet, fmt, io, mem};

use nix::sys::socket::{setsockopt, sockopt};
use rtnetlink::{
    MulticastGroup,
    packet_core::NetlinkBuffer,
    sys::{AsyncSocket, AsyncSocketExt, TokioSocket, protocols::NETLINK_ROUTE},
};

use super::{NetlinkError, connection::DATAGRAM_BYTES};

/// Room for about 5000 announcements that nobody has read yet (the kernel counts some 800 bytes for a small one).
pub const WATCH_BUFFER_BYTES: usize = 4 << 20;

/// That something came is enough; so little that it is soon emptied.
const WITNESS_BUFFER_BYTES: usize = 16 << 10;

/// How many announcements one wake-up folds together before it lets others run.
const FOLD: usize = 1024;

// numbers of linux/rtnetlink.h that libc does not have
const RTM_DELNETCONF: u16 = 81;
const RTM_NEWNEXTHOP: u16 = 104;
const RTM_DELNEXTHOP: u16 = 105;

/// Something of this kind is different from before; what it is now has to be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Change {
    /// The kernel dropped announcements because they were not read in time: anything may have changed.
    Overflow,
    /// Also the only sign of IPv4 routes that went because their link was set down.
    Links,
    /// Also the only sign of routes that went with the last address of a link.
    Addresses,
    /// Routes and nexthop objects.
    Routes,
    Neighbours,
    /// rp_filter, forwarding, proxy_arp or ignore_routes_with_linkdown of a link, of `all` or `default`. The kernel
    /// announces no other sysctl.
    Sysctls,
}

impl Change {
    /// What an announcement of this type (RTM_*) is about.
    fn of(kind: u16) -> Option<Self> {
        match kind {
            libc::RTM_NEWLINK | libc::RTM_DELLINK => Some(Self::Links),
            libc::RTM_NEWADDR | libc::RTM_DELADDR => Some(Self::Addresses),
            libc::RTM_NEWROUTE | libc::RTM_DELROUTE | RTM_NEWNEXTHOP | RTM_DELNEXTHOP => Some(Self::Routes),
            libc::RTM_NEWNEIGH | libc::RTM_DELNEIGH => Some(Self::Neighbours),
            libc::RTM_NEWNETCONF | RTM_DELNETCONF => Some(Self::Sysctls),
            _ => None,
        }
    }
}

/// Subscription to the kernel's announcements, from [`watch`].
///
/// What the holder itself changes is announced like everything else.
pub struct Watch {
    socket: TokioSocket,
    buffer: Vec<u8>,
    pending: BTreeSet<Change>,
}

/// Whether more may wait in the socket.
enum Queue {
    Continues,
    Empty,
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch").field("pending", &self.pending).finish_non_exhaustive()
    }
}

/// Subscribes in the network namespace of the calling thread; everything from now on is announced.
///
/// Read the tables after this, not before, and no change is missed. Must be called inside a tokio runtime.
pub fn watch() -> Result<Watch, NetlinkError> {
    Watch::open(WATCH_BUFFER_BYTES)
}

impl Watch {
    /// As [`watch`], with room for `buffer_bytes` of unread announcements (the kernel doubles the number for its own
    /// overhead). Without CAP_NET_ADMIN `net.core.rmem_max` is the limit.
    pub fn open(buffer_bytes: usize) -> Result<Self, NetlinkError> {
        Self::of(
            &[
                MulticastGroup::Link,
                MulticastGroup::Ipv4Ifaddr,
                MulticastGroup::Ipv6Ifaddr,
                MulticastGroup::Ipv4Route,
                MulticastGroup::Ipv6Route,
                // a nexthop object that goes takes its routes along, unannounced
                MulticastGroup::Nexthop,
                MulticastGroup::Neigh,
                MulticastGroup::Ipv4Netconf,
                MulticastGroup::Ipv6Netconf,
            ],
            buffer_bytes,
        )
    }

    /// Everything that IPv6 routes come and go with, for a reader of that table. Overflow tells it as much as a message.
    pub(super) fn of_ipv6_routes() -> Result<Self, NetlinkError> {
        Self::of(&[MulticastGroup::Ipv6Route, MulticastGroup::Link, MulticastGroup::Nexthop], WITNESS_BUFFER_BYTES)
    }

    fn of(groups: &[MulticastGroup], buffer_bytes: usize) -> Result<Self, NetlinkError> {
        let socket = subscribe(groups, buffer_bytes).map_err(|source| NetlinkError::Open { source })?;
        Ok(Self { socket, buffer: Vec::with_capacity(DATAGRAM_BYTES), pending: BTreeSet::new() })
    }

    /// Waits for the next change. Changes of one kind that came before the call are reported once.
    ///
    /// None means that the socket failed, which is logged; the watch is of no more use then. Dropping the future loses
    /// nothing.
    pub async fn next(&mut self) -> Option<Change> {
        while self.pending.is_empty() {
            self.buffer.clear();
            let received = self.socket.recv(&mut self.buffer).await;
            if let Err(error) = self.take(received).and_then(|_| self.take_queued()) {
                tracing::error!(%error, "cannot receive the kernel's announcements");
                return None;
            }
        }
        self.pending.pop_first()
    }

    /// What was announced up to now and not yet reported.
    pub(super) fn seen(&mut self) -> io::Result<BTreeSet<Change>> {
        self.take_queued()?;
        Ok(mem::take(&mut self.pending))
    }

    /// Takes what waits in the socket, up to [`FOLD`] datagrams.
    fn take_queued(&mut self) -> io::Result<()> {
        for _ in 0..FOLD {
            self.buffer.clear();
            let received = self.socket.socket_ref().recv(&mut self.buffer, libc::MSG_DONTWAIT);
            match self.take(received.map(drop))? {
                Queue::Continues => {}
                Queue::Empty => break,
            }
        }
        Ok(())
    }

    fn take(&mut self, received: io::Result<()>) -> io::Result<Queue> {
        match received {
            Ok(()) => self.note(),
            Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {
                self.pending.insert(Change::Overflow);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Queue::Empty),
            Err(error) => return Err(error),
        }
        Ok(Queue::Continues)
    }

    /// Takes the announcements of the datagram in the buffer.
    fn note(&mut self) {
        let mut bytes = self.buffer.as_slice();
        while !bytes.is_empty() {
            let Ok(message) = NetlinkBuffer::new_checked(bytes) else {
                // what it would have said is unknown, as if it had been dropped
                self.pending.insert(Change::Overflow);
                return;
            };
            self.pending.extend(Change::of(message.message_type()));
            let next = (message.length() as usize).next_multiple_of(4).min(bytes.len());
            bytes = &bytes[next..];
        }
    }
}

fn subscribe(groups: &[MulticastGroup], buffer_bytes: usize) -> io::Result<TokioSocket> {
    let mut socket = TokioSocket::new(NETLINK_ROUTE)?;
    // only root may go beyond net.core.rmem_max
    if setsockopt(socket.socket_ref(), sockopt::RcvBufForce, &buffer_bytes).is_err() {
        setsockopt(socket.socket_ref(), sockopt::RcvBuf, &buffer_bytes)?;
    }
    socket.socket_mut().bind_auto()?;
    for group in groups {
        socket.socket_ref().add_membership(*group as u32)?;
    }
    Ok(socket)
}
