//! Reading the ring buffer of events.

use std::os::fd::{AsFd, BorrowedFd};

use aya::maps::{MapData, RingBuf};
use ebpf::abi::{Event, map::EVENTS};

use super::{Dataplane, DataplaneError, Result};

/// The consumer of the programs' events: one at a time, since the kernel keeps one reading position.
pub struct Events {
    ring: RingBuf<MapData>,
}

impl std::fmt::Debug for Events {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Events")
    }
}

impl AsFd for Events {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.ring.as_fd()
    }
}

impl Dataplane {
    /// Opens the ring buffer, passing over what nobody read in time.
    pub fn events(&self) -> Result<Events> {
        let mut ring: RingBuf<MapData> = self.open_map(EVENTS)?;
        while ring.next().is_some() {}
        Ok(Events { ring })
    }
}

/// Ends where no event waits; more may come later. An error is a record that is no event of this layout.
impl Iterator for Events {
    type Item = Result<Event>;

    fn next(&mut self) -> Option<Result<Event>> {
        let record = self.ring.next()?;
        let wrong = || DataplaneError::Read {
            map: EVENTS,
            source: std::io::Error::new(std::io::ErrorKind::InvalidData, "a record has another layout"),
        };
        Some(super::raw::event(&record).ok_or_else(wrong))
    }
}
