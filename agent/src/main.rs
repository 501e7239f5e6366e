//! The binary `nicpath`: everything is in the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    agent::cli::main()
}
