//! Frames into and out of a device, by packet sockets (packet(7)).

use std::fmt;
use std::io::{IoSliceMut, PipeWriter, pipe};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime};

use etherparse::{EtherType, LaxSlicedPacket};
use nix::errno::Errno;
use nix::ifaddrs::getifaddrs;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::sockopt::{RcvBufForce, ReceiveTimestampns};
use nix::sys::socket::{
    AddressFamily, ControlMessageOwned, LinkAddr, MsgFlags, SockFlag, SockProtocol, SockType, bind, recvmsg, send,
    setsockopt, socket,
};

use crate::netns::Netns;
use crate::sys;

/// Bytes of frames that may wait for the capture to read them.
const RECEIVE_BUFFER: usize = 16 << 20;
/// The largest super-packet with its headers.
const LARGEST_FRAME: usize = 128 << 10;
/// Both Ethernet addresses; a VLAN tag stands behind them.
const MACS: usize = 12;
/// `sll_pkttype` of a frame on its way out (linux/if_packet.h).
const PACKET_OUTGOING: u8 = 4;
/// Bytes of `struct tpacket_auxdata` (linux/if_packet.h).
const AUXDATA: usize = 20;

/// Sends frames out of one device, as they are: no neighbour, route or filter is asked.
#[derive(Debug)]
pub struct Sender {
    socket: OwnedFd,
    mac: [u8; 6],
}

impl Sender {
    /// Panics if `device` is not in `netns`.
    #[must_use]
    pub fn new(netns: &Netns, device: &str) -> Self {
        let (socket, link) = open(netns, device, Listen::No);
        Self { socket, mac: link.addr().unwrap_or_default() }
    }

    /// The device's Ethernet address.
    #[must_use]
    pub fn mac(&self) -> [u8; 6] {
        self.mac
    }

    /// Sends one frame, from its Ethernet header on. Panics if the device refuses it (down, or too long).
    pub fn send(&self, frame: &[u8]) {
        if let Err(error) = send(self.socket.as_raw_fd(), frame, MsgFlags::empty()) {
            panic!("send a frame of {} bytes: {error}", frame.len());
        }
    }
}

/// Which way a frame went, seen from the device it was captured on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    In,
    Out,
}

/// A frame that passed a device.
#[derive(Clone, PartialEq, Eq)]
pub struct Captured {
    pub at: SystemTime,
    pub direction: Direction,
    /// From the Ethernet header on, VLAN tags in their place.
    pub bytes: Vec<u8>,
}

impl Captured {
    /// Its headers, as far as they go; `None` if there is not even an Ethernet header.
    #[must_use]
    pub fn headers(&self) -> Option<LaxSlicedPacket<'_>> {
        LaxSlicedPacket::from_ethernet(&self.bytes).ok()
    }

    /// Destination address of its Ethernet header.
    #[must_use]
    pub fn destination_mac(&self) -> [u8; 6] {
        std::array::from_fn(|index| self.bytes.get(index).copied().unwrap_or_default())
    }

    /// Source address of its Ethernet header.
    #[must_use]
    pub fn source_mac(&self) -> [u8; 6] {
        std::array::from_fn(|index| self.bytes.get(6 + index).copied().unwrap_or_default())
    }
}

impl fmt::Debug for Captured {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let headers = self.headers();
        let (net, transport) = headers.as_ref().map(|headers| (&headers.net, &headers.transport)).unzip();
        formatter
            .debug_struct("Captured")
            .field("direction", &self.direction)
            .field("to", &format_args!("{:02x?}", self.destination_mac()))
            .field("from", &format_args!("{:02x?}", self.source_mac()))
            .field("net", &net)
            .field("transport", &transport)
            .field("length", &self.bytes.len())
            .finish()
    }
}

/// What a capture has seen so far.
#[derive(Debug, Default)]
struct Seen {
    frames: Mutex<Vec<Captured>>,
    more: Condvar,
}

impl Seen {
    fn lock(&self) -> MutexGuard<'_, Vec<Captured>> {
        self.frames.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Records every frame of one device, in both directions, until it is stopped or dropped.
///
/// What goes out is seen behind the egress programs, what comes in before the ingress programs.
#[derive(Debug)]
pub struct Capture {
    seen: Arc<Seen>,
    stop: Option<PipeWriter>,
    thread: Option<JoinHandle<()>>,
}

impl Capture {
    /// Records from when this returns. Panics if `device` is not in `netns`.
    #[must_use]
    pub fn start(netns: &Netns, device: &str) -> Self {
        let (socket, link) = open(netns, device, Listen::Yes);
        let (stopped, stop) = pipe().unwrap_or_else(|error| panic!("pipe: {error}"));
        let seen = Arc::new(Seen::default());
        let thread = thread::spawn({
            let seen = Arc::clone(&seen);
            move || record(&socket, link.ifindex(), &stopped, &seen)
        });
        Self { seen, stop: Some(stop), thread: Some(thread) }
    }

    /// Waits for a frame, seen already or still to come; panics after `deadline` with what was seen.
    pub fn wait_for(&self, mut wanted: impl FnMut(&Captured) -> bool, deadline: Duration) -> Captured {
        let start = Instant::now();
        let (mut frames, mut looked_at) = (self.seen.lock(), 0);
        loop {
            if let Some(found) = frames[looked_at..].iter().find(|frame| wanted(frame)) {
                return found.clone();
            }
            looked_at = frames.len();
            let Some(left) = deadline.checked_sub(start.elapsed()) else {
                panic!("no such frame within {deadline:?}; seen: {:#?}", *frames)
            };
            frames = self.seen.more.wait_timeout(frames, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// The frames seen so far, in their order.
    #[must_use]
    pub fn frames(&self) -> Vec<Captured> {
        self.seen.lock().clone()
    }

    /// Ends the recording; all frames, in their order.
    #[must_use]
    pub fn stop(mut self) -> Vec<Captured> {
        self.end();
        std::mem::take(&mut *self.seen.lock())
    }

    fn end(&mut self) {
        self.stop = None;
        if let Some(Err(_)) = self.thread.take().map(JoinHandle::join) {
            eprintln!("the thread of a capture had panicked");
        }
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        self.end();
    }
}

/// Whether a packet socket is given what passes its device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Listen {
    No,
    Yes,
}

fn open(netns: &Netns, device: &str, listen: Listen) -> (OwnedFd, LinkAddr) {
    let opened = netns.run(|| {
        let link = getifaddrs()?
            .filter(|found| found.interface_name == device)
            .find_map(|found| found.address.and_then(|address| address.as_link_addr().copied()))
            .ok_or(Errno::ENODEV)?;
        let protocol = (listen == Listen::Yes).then_some(SockProtocol::EthAll);
        let socket = socket(AddressFamily::Packet, SockType::Raw, SockFlag::SOCK_CLOEXEC, protocol)?;
        if listen == Listen::Yes {
            setsockopt(&socket, RcvBufForce, &RECEIVE_BUFFER)?;
            setsockopt(&socket, ReceiveTimestampns, &true)?;
            sys::enable_packet_auxdata(socket.as_fd()).map_err(|_| Errno::last())?;
        }
        bind(socket.as_raw_fd(), &link)?;
        Ok::<_, Errno>((socket, link))
    });
    opened.unwrap_or_else(|error| panic!("packet socket on {device} in {}: {error}", netns.name()))
}

/// Reads until `stopped` closes, and then what was received before.
fn record(socket: &OwnedFd, ifindex: usize, stopped: &impl AsFd, seen: &Seen) {
    let mut buffer = vec![0; LARGEST_FRAME];
    loop {
        let mut polled =
            [PollFd::new(socket.as_fd(), PollFlags::POLLIN), PollFd::new(stopped.as_fd(), PollFlags::empty())];
        let _ = poll(&mut polled, PollTimeout::NONE);
        let stop = polled[1].any().unwrap_or(true);
        while let Some((link, frame)) = receive(socket, &mut buffer) {
            // Between its creation and its binding the socket belonged to every device.
            if link.ifindex() == ifindex {
                seen.lock().push(frame);
                seen.more.notify_all();
            }
        }
        if stop {
            return;
        }
    }
}

fn receive(socket: &OwnedFd, buffer: &mut [u8]) -> Option<(LinkAddr, Captured)> {
    let mut space = nix::cmsg_space!(nix::sys::time::TimeSpec, [u8; AUXDATA]);
    let (length, link, at, tag) = {
        let mut parts = [IoSliceMut::new(buffer)];
        let flags = MsgFlags::MSG_DONTWAIT;
        let message = recvmsg::<LinkAddr>(socket.as_raw_fd(), &mut parts, Some(&mut space), flags).ok()?;
        let (mut at, mut tag) = (None, None);
        for control in message.cmsgs().ok()? {
            match control {
                ControlMessageOwned::ScmTimestampns(time) => at = Some(SystemTime::UNIX_EPOCH + Duration::from(time)),
                ControlMessageOwned::Unknown(other) if other.cmsg_header.cmsg_level == libc::SOL_PACKET => {
                    tag = vlan_tag(&other.data_bytes);
                }
                _ => {}
            }
        }
        (message.bytes, message.address?, at.unwrap_or_else(SystemTime::now), tag)
    };
    let mut bytes = buffer[..length].to_vec();
    if let (Some(tag), true) = (tag, bytes.len() >= MACS) {
        bytes.splice(MACS..MACS, tag);
    }
    let direction = if link.pkttype() == PACKET_OUTGOING { Direction::Out } else { Direction::In };
    Some((link, Captured { at, direction, bytes }))
}

/// The VLAN tag that the kernel keeps beside the bytes, from `struct tpacket_auxdata`.
fn vlan_tag(auxdata: &[u8]) -> Option<[u8; 4]> {
    const TCI: usize = 16;
    const TPID: usize = 18;
    const VLAN_VALID: u32 = 1 << 4;
    const VLAN_TPID_VALID: u32 = 1 << 6;
    let auxdata: &[u8; AUXDATA] = auxdata.try_into().ok()?;
    let half = |at: usize| u16::from_ne_bytes([auxdata[at], auxdata[at + 1]]).to_be_bytes();
    let status = u32::from_ne_bytes([auxdata[0], auxdata[1], auxdata[2], auxdata[3]]);
    if status & VLAN_VALID == 0 {
        return None;
    }
    let default = EtherType::VLAN_TAGGED_FRAME.0.to_be_bytes();
    let ([a, b], [c, d]) = (if status & VLAN_TPID_VALID == 0 { default } else { half(TPID) }, half(TCI));
    Some([a, b, c, d])
}

#[cfg(test)]
mod tests;
