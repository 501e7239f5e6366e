//! Servers that live in a namespace until they are dropped.

use std::fmt;
use std::io::{self, PipeWriter, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::thread::{self, JoinHandle};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::netns::Netns;

/// A TCP server that sends every connection its own bytes back until the client closes.
#[derive(Debug)]
pub struct TcpEcho {
    address: SocketAddr,
    _worker: Worker,
}

/// A UDP server that answers every datagram from the socket it listens on.
#[derive(Debug)]
pub struct UdpEcho {
    address: SocketAddr,
    _worker: Worker,
}

impl TcpEcho {
    /// Listens on `address` in `netns`; port 0 takes a free one. Panics if it cannot.
    #[must_use]
    pub fn start(netns: &Netns, address: SocketAddr) -> Self {
        let listener = bound(netns, "TCP", address, || TcpListener::bind(address));
        let address = listener.local_addr().unwrap_or(address);
        Self { address, _worker: Worker::start(move |stop| serve_connections(&listener, stop)) }
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl UdpEcho {
    /// Sends every datagram back as it came. With an unspecified `address` the kernel chooses the answers' source.
    #[must_use]
    pub fn start(netns: &Netns, address: SocketAddr) -> Self {
        Self::answering(netns, address, |datagram| datagram.to_vec())
    }

    /// Answers every datagram by what `answer` makes of it.
    #[must_use]
    pub fn answering(
        netns: &Netns,
        address: SocketAddr,
        answer: impl FnMut(&[u8]) -> Vec<u8> + Send + 'static,
    ) -> Self {
        let socket = bound(netns, "UDP", address, || UdpSocket::bind(address));
        let address = socket.local_addr().unwrap_or(address);
        Self { address, _worker: Worker::start(move |stop| serve_datagrams(&socket, stop, answer)) }
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

fn bound<S: Send>(netns: &Netns, kind: &str, address: SocketAddr, bind: impl Fn() -> io::Result<S> + Send) -> S {
    netns.run(bind).unwrap_or_else(|error| panic!("{kind} server on {address} in {}: {error}", netns.name()))
}

/// A thread that ends when the other end of its pipe closes.
struct Worker {
    stop: Option<PipeWriter>,
    thread: Option<JoinHandle<()>>,
}

impl fmt::Debug for Worker {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Worker")
    }
}

impl Worker {
    fn start(work: impl FnOnce(&dyn AsFd) + Send + 'static) -> Self {
        let (stopped, stop) = io::pipe().unwrap_or_else(|error| panic!("pipe: {error}"));
        Self { stop: Some(stop), thread: Some(thread::spawn(move || work(&stopped))) }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(Err(_)) = self.thread.take().map(JoinHandle::join) {
            eprintln!("a server thread had panicked");
        }
    }
}

/// What a server's wait ended with.
enum Event {
    Ready,
    Stop,
}

fn wait(socket: &impl AsFd, stop: &dyn AsFd) -> Event {
    let mut polled = [PollFd::new(socket.as_fd(), PollFlags::POLLIN), PollFd::new(stop.as_fd(), PollFlags::empty())];
    match poll(&mut polled, PollTimeout::NONE) {
        Ok(_) | Err(nix::errno::Errno::EINTR) if !polled[1].any().unwrap_or(false) => Event::Ready,
        _ => Event::Stop,
    }
}

fn serve_connections(listener: &TcpListener, stop: &dyn AsFd) {
    let mut connections: Vec<(TcpStream, JoinHandle<()>)> = Vec::new();
    // A connection reset between poll and accept must not block the thread.
    let _ = listener.set_nonblocking(true);
    while let Event::Ready = wait(listener, stop) {
        connections.retain(|(_, thread)| !thread.is_finished());
        let accepted = listener.accept().and_then(|(stream, _)| {
            stream.set_nonblocking(false)?;
            Ok((stream.try_clone()?, thread::spawn(move || echo(stream))))
        });
        connections.extend(accepted);
    }
    for (stream, thread) in connections {
        let _ = stream.shutdown(Shutdown::Both);
        let _ = thread.join();
    }
}

/// Until the client closes or goes away, which is its own business.
fn echo(mut stream: TcpStream) {
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(length @ 1..) = stream.read(&mut buffer) {
        if stream.write_all(&buffer[..length]).is_err() {
            break;
        }
    }
    // The server keeps a handle of the connection until it looks at it again; the client is not to wait for that.
    let _ = stream.shutdown(Shutdown::Both);
}

fn serve_datagrams(socket: &UdpSocket, stop: &dyn AsFd, mut answer: impl FnMut(&[u8]) -> Vec<u8>) {
    let mut buffer = vec![0; 64 * 1024];
    let _ = socket.set_nonblocking(true);
    while let Event::Ready = wait(socket, stop) {
        // Errors are those of earlier answers (a port unreachable, say) and concern nobody else.
        if let Ok((length, client)) = socket.recv_from(&mut buffer) {
            let _ = socket.send_to(&answer(&buffer[..length]), client);
        }
    }
}
