//! One question to a server and its answer, on a fresh socket.

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::sockopt::{Ipv4RecvErr, Ipv6RecvErr, ReuseAddr, SocketError};
use nix::sys::socket::{
    self, AddressFamily, ControlMessageOwned, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrStorage,
};
use thiserror::Error;

use crate::lab::Family;
use crate::netns::Netns;

/// Why a check did not get its answer.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Failure {
    /// Nothing came in time.
    #[error("no answer in time")]
    Timeout,
    /// A TCP reset to the first packet, or ICMP "port unreachable".
    #[error("refused")]
    Refused,
    /// A TCP reset of an open connection.
    #[error("connection reset")]
    Reset,
    /// The server closed before its answer was complete.
    #[error("closed before the answer was complete")]
    Closed,
    /// Another ICMP error.
    #[error("{0}")]
    Unreachable(IcmpError),
    /// The client's own kernel has no way to the destination; nothing was sent.
    #[error("the client has no route")]
    NoRoute,
    /// An answer with other bytes, or from another address, than asked.
    #[error("wrong answer: {0}")]
    WrongAnswer(String),
    /// Anything else: the client's own trouble.
    #[error("{0}")]
    Os(Errno),
}

/// An ICMP error as the client's socket got it (ip(7), `IP_RECVERR`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("ICMP type {icmp_type} code {code} from {}", .from.map_or_else(|| "?".to_owned(), |from| from.to_string()))]
pub struct IcmpError {
    pub icmp_type: u8,
    pub code: u8,
    /// Who sent the error.
    pub from: Option<IpAddr>,
}

/// Connects from `from` to `to`, sends a few bytes and waits for them to come back; the time that took.
///
/// Port 0 in `from` takes a free one.
///
/// # Errors
/// Why no right answer came within `timeout`.
pub fn tcp_check(netns: &Netns, from: SocketAddr, to: SocketAddr, timeout: Duration) -> Result<Duration, Failure> {
    netns.run(|| tcp(from, to, timeout))
}

/// Sends a datagram from `from` to `to` and waits for it to come back from there; the time that took.
///
/// Port 0 in `from` takes a free one.
///
/// # Errors
/// Why no right answer came within `timeout`.
pub fn udp_check(netns: &Netns, from: SocketAddr, to: SocketAddr, timeout: Duration) -> Result<Duration, Failure> {
    netns.run(|| udp(from, to, timeout))
}

/// Sends an ICMP echo request from `from` to `to` and waits for its reply; the time that took.
///
/// # Errors
/// Why no right answer came within `timeout`.
pub fn ping_check(netns: &Netns, from: IpAddr, to: IpAddr, timeout: Duration) -> Result<Duration, Failure> {
    netns.run(|| ping(from, to, timeout))
}

/// A check in the namespace of the calling thread.
pub(super) fn tcp(from: SocketAddr, to: SocketAddr, timeout: Duration) -> Result<Duration, Failure> {
    let clock = Clock::start(timeout);
    let socket = Socket::open(SockType::Stream, None, from)?;
    match socket::connect(socket.fd.as_raw_fd(), &SockaddrStorage::from(to)) {
        Ok(()) | Err(Errno::EINPROGRESS) => {}
        Err(error) => return Err(socket.failure(error)),
    }
    clock.wait(&socket.fd, PollFlags::POLLOUT)?;
    let outcome = socket::getsockopt(&socket.fd, SocketError)?;
    if outcome != 0 {
        return Err(socket.failure(Errno::from_raw(outcome)));
    }
    let question = token();
    let mut answer = vec![0; question.len()];
    let mut stream = TcpStream::from(socket.fd.try_clone().map_err(|error| errno(&error))?);
    stream.write_all(&question).map_err(|error| socket.failure(errno(&error)))?;
    let mut received = 0;
    while received < answer.len() {
        clock.wait(&socket.fd, PollFlags::POLLIN)?;
        match stream.read(&mut answer[received..]) {
            Ok(0) => return Err(Failure::Closed),
            Ok(length) => received += length,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(socket.failure(errno(&error))),
        }
    }
    compare(&question, &answer).map(|()| clock.elapsed())
}

/// A check in the namespace of the calling thread.
pub(super) fn udp(from: SocketAddr, to: SocketAddr, timeout: Duration) -> Result<Duration, Failure> {
    let clock = Clock::start(timeout);
    let socket = Socket::open(SockType::Datagram, None, from)?;
    let question = token();
    let answer = socket.ask(&question, to, &clock)?;
    compare(&question, &answer).map(|()| clock.elapsed())
}

/// A check in the namespace of the calling thread.
pub(super) fn ping(from: IpAddr, to: IpAddr, timeout: Duration) -> Result<Duration, Failure> {
    /// Echo request, echo reply (RFC 792, RFC 4443).
    const TYPES: [[u8; 2]; 2] = [[8, 0], [128, 129]];
    const HEADER: usize = 8;
    let (protocol, [request, reply]) = match Family::of(to) {
        Family::V4 => (SockProtocol::Icmp, TYPES[0]),
        Family::V6 => (SockProtocol::IcmpV6, TYPES[1]),
    };
    let clock = Clock::start(timeout);
    // The kernel chooses the id, writes it and the checksum, and gives this socket the replies with its id only.
    let socket = Socket::open(SockType::Datagram, Some(protocol), SocketAddr::new(from, 0))?;
    let id = socket.port()?.to_be_bytes();
    let question = [&[request, 0, 0, 0, id[0], id[1], 0, 1], token().as_slice()].concat();
    let answer = socket.ask(&question, SocketAddr::new(to, 0), &clock)?;
    if answer.len() < HEADER || answer[0] != reply || answer[4..HEADER] != question[4..HEADER] {
        return Err(Failure::WrongAnswer(format!("ICMP header {:02x?}", &answer[..answer.len().min(HEADER)])));
    }
    compare(&question[HEADER..], &answer[HEADER..]).map(|()| clock.elapsed())
}

fn compare(question: &[u8], answer: &[u8]) -> Result<(), Failure> {
    if question == answer {
        return Ok(());
    }
    let (asked, got) = (String::from_utf8_lossy(question), String::from_utf8_lossy(answer));
    Err(Failure::WrongAnswer(format!("asked {asked:?}, got {got:?}")))
}

/// Bytes that no other check of this machine sends.
fn token() -> Vec<u8> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    format!("check {:010} {:016}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed)).into_bytes()
}

struct Clock {
    start: Instant,
    timeout: Duration,
}

impl Clock {
    fn start(timeout: Duration) -> Self {
        Self { start: Instant::now(), timeout }
    }

    fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    fn wait(&self, socket: &OwnedFd, events: PollFlags) -> Result<(), Failure> {
        loop {
            let left = self.timeout.checked_sub(self.elapsed()).ok_or(Failure::Timeout)?;
            // Rounded up, so that the last wait does not spin.
            let millis = PollTimeout::try_from(left.as_millis() + 1).unwrap_or(PollTimeout::MAX);
            match poll(&mut [PollFd::new(socket.as_fd(), events)], millis) {
                Ok(0) | Err(Errno::EINTR) => {}
                Ok(_) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// A non-blocking socket bound to the client's address, which is told of every ICMP error.
struct Socket {
    fd: OwnedFd,
}

impl Socket {
    fn open(kind: SockType, protocol: Option<SockProtocol>, from: SocketAddr) -> Result<Self, Failure> {
        let family = if from.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
        let fd = socket::socket(family, kind, SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC, protocol)?;
        match from {
            SocketAddr::V4(_) => socket::setsockopt(&fd, Ipv4RecvErr, &true)?,
            SocketAddr::V6(_) => socket::setsockopt(&fd, Ipv6RecvErr, &true)?,
        }
        socket::setsockopt(&fd, ReuseAddr, &true)?;
        socket::bind(fd.as_raw_fd(), &SockaddrStorage::from(from))?;
        Ok(Self { fd })
    }

    fn port(&self) -> Result<u16, Failure> {
        let address: SockaddrStorage = socket::getsockname(self.fd.as_raw_fd())?;
        Ok(plain(&address).map_or(0, |address| address.port()))
    }

    /// Sends `question` to `to`; the first datagram that comes back, which must be from there.
    fn ask(&self, question: &[u8], to: SocketAddr, clock: &Clock) -> Result<Vec<u8>, Failure> {
        let fd = self.fd.as_raw_fd();
        socket::sendto(fd, question, &SockaddrStorage::from(to), MsgFlags::empty())
            .map_err(|error| self.failure(error))?;
        let mut answer = vec![0; 64 * 1024];
        loop {
            clock.wait(&self.fd, PollFlags::POLLIN)?;
            match socket::recvfrom::<SockaddrStorage>(fd, &mut answer) {
                Err(Errno::EAGAIN) => {}
                Err(error) => return Err(self.failure(error)),
                Ok((length, sender)) => {
                    answer.truncate(length);
                    let sender = sender.as_ref().and_then(plain);
                    return match sender {
                        Some(sender) if sender != to => Err(Failure::WrongAnswer(format!("it is from {sender}"))),
                        _ => Ok(answer),
                    };
                }
            }
        }
    }

    /// What an error of this socket means; the ICMP error behind it is in the socket's error queue.
    fn failure(&self, error: Errno) -> Failure {
        match (error, self.icmp_error()) {
            (Errno::ECONNREFUSED, _) => Failure::Refused,
            (Errno::ECONNRESET | Errno::EPIPE, _) => Failure::Reset,
            (_, Some(icmp)) => Failure::Unreachable(icmp),
            (Errno::ENETUNREACH | Errno::EHOSTUNREACH, None) => Failure::NoRoute,
            (error, None) => Failure::Os(error),
        }
    }

    fn icmp_error(&self) -> Option<IcmpError> {
        /// `ee_origin` of errors that came as packets (linux/errqueue.h).
        const FROM_ICMP: [u8; 2] = [libc::SO_EE_ORIGIN_ICMP, libc::SO_EE_ORIGIN_ICMP6];
        let mut quoted = [0; 2048];
        let mut buffers = [io::IoSliceMut::new(&mut quoted)];
        let mut space = nix::cmsg_space!([u8; 256]);
        let flags = MsgFlags::MSG_ERRQUEUE;
        let message =
            socket::recvmsg::<SockaddrStorage>(self.fd.as_raw_fd(), &mut buffers, Some(&mut space), flags).ok()?;
        message.cmsgs().ok()?.find_map(|control| {
            let (error, from) = match control {
                ControlMessageOwned::Ipv4RecvErr(error, from) => {
                    (error, from.map(|from| IpAddr::from(from.sin_addr.s_addr.to_ne_bytes())))
                }
                ControlMessageOwned::Ipv6RecvErr(error, from) => {
                    (error, from.map(|from| IpAddr::from(from.sin6_addr.s6_addr)))
                }
                _ => return None,
            };
            let icmp = IcmpError { icmp_type: error.ee_type, code: error.ee_code, from };
            FROM_ICMP.contains(&error.ee_origin).then_some(icmp)
        })
    }
}

/// The address without zone and flow label, as the checks name their destinations.
fn plain(address: &SockaddrStorage) -> Option<SocketAddr> {
    let v4 = address.as_sockaddr_in().map(|address| SocketAddr::from((address.ip(), address.port())));
    v4.or_else(|| address.as_sockaddr_in6().map(|address| SocketAddr::from((address.ip(), address.port()))))
}

impl From<Errno> for Failure {
    fn from(error: Errno) -> Self {
        Self::Os(error)
    }
}

fn errno(error: &io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::EIO, Errno::from_raw)
}
