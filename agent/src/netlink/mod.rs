//! The host's network configuration over the kernel's routing socket: reads it into [`Inventory`] values, watches it, and
//! changes routes of ours. The only module that knows rtnetlink; it decides nothing.
//!
//! Everything happens in the network namespace of the thread that called [`Netlink::connect`] or [`watch`].
//! Protocol: rtnetlink(7), Documentation/userspace-api/netlink in the kernel tree.

mod connection;
mod error;
mod observe;
mod route;
mod watch;

use rtnetlink::{packet_core::DecodeError, packet_route::RouteNetlinkMessage};
use tokio::sync::Mutex;

use self::connection::{Connection, ExchangeError, Frame};
pub use self::{
    error::{NetlinkError, NetlinkFailure},
    route::{Changed, KernelChoice, RouteQuery},
    watch::{Change, WATCH_BUFFER_BYTES, Watch, watch},
};
use crate::inventory::Inventory;

/// Readings of a table that changes under the reader, before it is given up. A reading takes a few milliseconds.
const DUMP_ATTEMPTS: u32 = 8;

/// A routing socket in one network namespace. Requests of concurrent callers follow one another.
///
/// A request is answered by the kernel before it returns to the caller, so nothing here waits for the network.
pub struct Netlink {
    connection: Mutex<Connection>,
    ipv6_witness: Mutex<Watch>,
}

impl std::fmt::Debug for Netlink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Netlink").finish_non_exhaustive()
    }
}

impl Netlink {
    /// Opens a socket in the network namespace of the calling thread. Must be called inside a tokio runtime.
    ///
    /// Reading needs no privilege, changing needs CAP_NET_ADMIN.
    pub fn connect() -> Result<Self, NetlinkError> {
        let connection = Connection::open().map_err(|source| NetlinkError::Open { source })?;
        Ok(Self { connection: Mutex::new(connection), ipv6_witness: Mutex::new(Watch::of_ipv6_routes()?) })
    }

    /// Everything but the sysctls, table after table.
    ///
    /// The tables are not read at one instant: what changes meanwhile may be seen in one and not in the other. Subscribe
    /// with [`watch`] before the first reading and read again on every change, then nothing stays unseen.
    pub async fn observe(&self) -> Result<Inventory, NetlinkError> {
        Ok(Inventory {
            links: self.links().await?,
            addresses: self.addresses().await?,
            routes: self.routes().await?,
            neighbours: self.neighbours().await?,
            ..Inventory::default()
        })
    }

    /// Reads a whole table, again from the start when the kernel says that it changed meanwhile.
    async fn dump<T>(
        &self,
        command: &str,
        request: &RouteNetlinkMessage,
        read: impl Fn(&Frame<'_>) -> Result<Option<T>, DecodeError>,
    ) -> Result<Vec<T>, NetlinkError> {
        for _ in 0..DUMP_ATTEMPTS {
            match self.connection.lock().await.dump(request.clone(), &read).await {
                Err(ExchangeError::Interrupted) => {}
                answer => return answer.map_err(|error| failed(command.to_owned(), error)),
            }
        }
        Err(NetlinkError::Interrupted { command: command.to_owned(), attempts: DUMP_ATTEMPTS })
    }
}

fn failed(command: String, error: ExchangeError) -> NetlinkError {
    match error {
        ExchangeError::Refused { errno, message } => NetlinkError::refused(command, errno, message),
        ExchangeError::Interrupted => NetlinkError::Interrupted { command, attempts: 1 },
        ExchangeError::Io(source) => NetlinkError::Lost { command, source },
        ExchangeError::Undecodable(source) => NetlinkError::Undecodable { command, source },
    }
}
