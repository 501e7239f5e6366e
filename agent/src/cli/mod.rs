//! The commands, one file each; this one has what they share: arguments, exit codes, the way to a pipeline.

mod agent;
mod apply;
pub mod check;
mod check_command;
mod monitor;
mod preflight;
mod status;
mod switch;
mod uninstall;
mod why;

use std::{path::PathBuf, process::ExitCode};

use clap::{Args, Parser, Subcommand, ValueEnum};
use ipnet::IpNet;

use crate::{
    config::NodeConfig,
    dataplane::Dataplane,
    hook::Position,
    manifests::{Manifests, check_dir, recall},
    merge::{NodeIdentity, Protected},
    netlink::Netlink,
    pipeline::Pipeline,
    state::{Lock, Locking, State, StateDir},
    sysctl::Sysctls,
};

/// Every reply leaves by the NIC its flow arrived on; destination routes are objects.
#[derive(Debug, Parser)]
#[command(name = "nicpath", version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// The node daemon: applies manifests, follows their changes and the host's, repairs drift
    Agent(agent::AgentArgs),
    /// Applies manifests once and exits; the programs go on working with no process
    Apply(apply::ApplyArgs),
    /// Validates manifests and prints every error
    Check(check_command::CheckArgs),
    /// Shows NICs, programs, routes, table fill and conditions; works with no agent running
    Status(status::StatusArgs),
    /// Runs the loaded programs on a made packet and says what they decide, and why
    Why(why::WhyArgs),
    /// Prints drops and a sample of redirects as they happen
    Monitor(monitor::MonitorArgs),
    /// Emergency switch: the running programs pass everything at once; routes and state stay
    Off(switch::SwitchArgs),
    /// Ends `off`
    On(switch::SwitchArgs),
    /// Removes programs, pins, maps, routes and state, and restores settings; works with no agent
    Uninstall(uninstall::UninstallArgs),
}

/// Where a node's state and programs are.
#[derive(Debug, Clone, Args)]
struct Paths {
    /// Directory for what must survive a reboot
    #[arg(long, value_name = "DIR", default_value = "/var/lib/nicpath", env = "NICPATH_STATE_DIR")]
    state_dir: PathBuf,
    /// Directory on a mounted bpffs for programs, maps and attachments
    #[arg(long, value_name = "DIR", default_value = "/sys/fs/bpf/nicpath", env = "NICPATH_BPFFS")]
    bpffs: PathBuf,
}

/// What the manifests are read for.
#[derive(Debug, Clone, Args)]
struct ManifestArgs {
    /// Directory with NicClass, RouteEntry and NodeRouteConfig manifests
    #[arg(long, value_name = "DIR")]
    manifests: PathBuf,
    /// Name of this node [default: the host name]
    #[arg(long, value_name = "NAME", env = "NODE_NAME")]
    node_name: Option<String>,
    /// Labels of this node, for node selectors
    #[arg(long, value_name = "KEY=VALUE", value_delimiter = ',', value_parser = label)]
    node_labels: Vec<(String, String)>,
    /// Destinations that no route may cover: API server, pod and service ranges
    #[arg(long, value_name = "CIDR", value_delimiter = ',')]
    protect: Vec<IpNet>,
}

/// How programs are attached.
#[derive(Debug, Clone, Args)]
struct AttachArgs {
    /// Place among the programs of a hook
    #[arg(long, value_enum, default_value_t = PositionArg::Last)]
    position: PositionArg,
    /// How programs are attached; this version has TCX alone
    #[arg(long, value_enum, default_value_t = TcMode::Auto)]
    tc_mode: TcMode,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum PositionArg {
    First,
    Last,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum TcMode {
    Auto,
    Tcx,
}

/// Form of the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    Table,
    Json,
    Yaml,
}

impl From<PositionArg> for Position {
    fn from(arg: PositionArg) -> Self {
        match arg {
            PositionArg::First => Self::First,
            PositionArg::Last => Self::Last,
        }
    }
}

fn label(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or_else(|| format!("`{text}` is not KEY=VALUE"))?;
    Ok((key.trim().to_owned(), value.trim().to_owned()))
}

/// Why a command did not do what it was asked, and its exit code (design section 3).
#[derive(Debug)]
enum Failure {
    /// 1: the answer is no, or the input is invalid
    No(String),
    /// 1: the reasons are printed already
    Told,
    /// 3: a capability is missing
    NotPermitted(String),
    /// 4: the host lacks something
    Environment(String),
}

impl Failure {
    fn code(&self) -> u8 {
        match self {
            Self::No(_) | Self::Told => 1,
            Self::NotPermitted(_) => 3,
            Self::Environment(_) => 4,
        }
    }
}

impl<E: std::error::Error> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::No(error.to_string())
    }
}

type Answer = Result<(), Failure>;

/// Parses the command line and runs the command.
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    let answer = match &cli.command {
        Command::Agent(args) => block_on(agent::run(args)),
        Command::Apply(args) => block_on(apply::run(args)),
        Command::Check(args) => block_on(check_command::run(args)),
        Command::Status(args) => block_on(status::run(args)),
        Command::Why(args) => block_on(why::run(args)),
        Command::Monitor(args) => monitor::run(args),
        Command::Off(args) => switch::run(args, switch::To::Off),
        Command::On(args) => switch::run(args, switch::To::On),
        Command::Uninstall(args) => block_on(uninstall::run(args)),
    };
    match answer {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            match &failure {
                Failure::Told => {}
                Failure::No(message) | Failure::NotPermitted(message) | Failure::Environment(message) => {
                    eprintln!("nicpath: {message}");
                }
            }
            ExitCode::from(failure.code())
        }
    }
}

/// One thread does everything: the work is short and mostly waiting.
fn block_on(command: impl Future<Output = Answer>) -> Answer {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(command)
}

impl ManifestArgs {
    fn identity(&self) -> Result<NodeIdentity, Failure> {
        let name = match &self.node_name {
            Some(name) => name.clone(),
            None => host_name()?,
        };
        Ok(NodeIdentity { name, labels: self.node_labels.iter().cloned().collect() })
    }

    fn read(&self) -> Result<Manifests, Failure> {
        check_dir(&self.manifests).map_err(|problem| Failure::No(problem.message))?;
        Ok(Manifests::new(&self.manifests, self.identity()?, self.protect.clone()))
    }

    fn reserved(&self) -> Protected {
        reserved(&self.protect)
    }
}

/// What no route may cover, beside what the host's network shows.
fn reserved(protect: &[IpNet]) -> Protected {
    Protected { cluster_ranges: protect.to_vec(), dns: dns_servers(), ..Protected::default() }
}

fn host_name() -> Result<String, Failure> {
    let name = nix::unistd::gethostname()?;
    name.into_string().map_err(|_| Failure::No("the host name is not UTF-8: give --node-name".to_owned()))
}

/// The node's DNS servers, which no route may cut off; none if the file cannot be read.
fn dns_servers() -> Vec<IpNet> {
    let text = std::fs::read_to_string("/etc/resolv.conf").unwrap_or_default();
    text.lines()
        .filter_map(|line| line.trim().strip_prefix("nameserver"))
        .filter_map(|rest| rest.trim().split('%').next()?.parse::<std::net::IpAddr>().ok())
        .filter(|ip| !ip.is_loopback())
        .map(IpNet::from)
        .collect()
}

impl Paths {
    fn pipeline(&self, position: Position, reserved: Protected) -> Result<Pipeline, Failure> {
        Ok(Pipeline {
            netlink: Netlink::connect()?,
            dataplane: Dataplane::new(&self.bpffs),
            sysctls: Sysctls::default(),
            state_dir: StateDir::new(&self.state_dir),
            position,
            reserved,
        })
    }

    /// The configuration in force, from the state directory.
    fn in_force(&self) -> Result<InForce, Failure> {
        let state = StateDir::new(&self.state_dir).load()?;
        let last = state.last_good.clone().unwrap_or_default();
        let node = if last.node.is_empty() { host_name()? } else { last.node };
        let config = recall(&state).unwrap_or_default();
        Ok(InForce { state, config, node, reserved: reserved(&last.protect) })
    }

    /// Takes the lock for a command that changes the node and ends.
    fn lock(&self) -> Result<Lock, Failure> {
        match StateDir::new(&self.state_dir).lock()? {
            Locking::Taken(lock) => Ok(lock),
            Locking::Held(pid) => Err(Failure::No(format!(
                "another nicpath{} works with {}: stop it first",
                pid.map(|pid| format!(" (pid {pid})")).unwrap_or_default(),
                self.state_dir.display()
            ))),
        }
    }
}

/// What an earlier run was told.
struct InForce {
    state: State,
    config: NodeConfig,
    node: String,
    reserved: Protected,
}
