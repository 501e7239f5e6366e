//! Log lines of programs that were built with them (`cargo xtask build --debug-programs`).

use aya_log::EbpfLogger;

use super::Dataplane;
use crate::hook::Direction;

/// Reads what the programs log. One at a time: the kernel keeps one reading position.
pub struct ProgramLogs(EbpfLogger<&'static dyn log::Log>);

impl std::fmt::Debug for ProgramLogs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ProgramLogs")
    }
}

impl Dataplane {
    /// The log of the pinned programs, which share one; None if they were built without.
    pub fn logs(&self) -> Option<ProgramLogs> {
        let program = self.pinned_program(Direction::Egress)?;
        EbpfLogger::init_from_id(program).ok().map(ProgramLogs)
    }
}

impl ProgramLogs {
    /// Hands on everything that waits, to the agent's own log at the programs' levels.
    pub fn forward(&mut self) {
        self.0.flush();
    }
}
