//! What can go wrong between us and the kernel's BPF side, and what an operator can do about it.

use std::{io, path::PathBuf};

use aya::{
    EbpfError,
    maps::MapError,
    pin::PinError,
    programs::{ProgramError, links::LinkError},
};

use crate::{hook::Hook, tables::TableFull};

/// A failed operation on programs, links or maps.
#[derive(Debug, thiserror::Error)]
pub enum DataplaneError {
    #[error("cannot load the eBPF object: {0}")]
    Load(#[source] Box<EbpfError>),
    #[error("the kernel refused the program `{program}`: {}", verifier_tail(.source))]
    Verifier { program: &'static str, source: Box<ProgramError> },
    #[error("cannot attach to {hook}: {source}")]
    Attach { hook: Hook, source: Box<ProgramError> },
    #[error("map {map}: {source}")]
    Map { map: &'static str, source: Box<MapError> },
    #[error("cannot read map {map}: {source}")]
    Read { map: &'static str, source: io::Error },
    #[error("pinned link {}: {source}", path.display())]
    Link { path: PathBuf, source: LinkError },
    #[error("cannot pin {}: {source}", path.display())]
    Pin { path: PathBuf, source: PinError },
    #[error("{}: {source}", path.display())]
    File { path: PathBuf, source: io::Error },
    #[error(transparent)]
    Full(#[from] TableFull),
    #[error("no interface has index {0} any more")]
    LinkGone(crate::inventory::Ifindex),
}

/// The last lines of the verifier's log say what it refused; the first thousands how it got there.
fn verifier_tail(error: &ProgramError) -> String {
    const LINES: usize = 12;
    match error {
        ProgramError::LoadError { io_error, verifier_log } => {
            let log = verifier_log.to_string();
            let lines: Vec<&str> = log.lines().collect();
            let tail = &lines[lines.len().saturating_sub(LINES)..];
            format!("{io_error}\n{}", tail.join("\n"))
        }
        other => other.to_string(),
    }
}
