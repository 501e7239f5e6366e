//! The node beside its traffic: the programs on its hooks, its settings and routes, what the product says of it.
#![allow(dead_code, reason = "each test file looks at a part of it")]

use std::{
    collections::{BTreeMap, BTreeSet},
    hash::{BuildHasher, RandomState},
    net::SocketAddr,
    path::Path,
    process::{Command, Output},
    time::{Duration, Instant},
};

use agent::{
    api::{Mode, ReplyPath, SourceGuard},
    config::PerFamily,
    dataplane::Dataplane,
    hook::{Direction, Hook, HookState, Installed, Position, ProgramRef},
    inventory::Ifindex,
    tables::{AdminState, NicEntry, Slot, TableSpec},
};
use serde_json::Value;
use tests::{
    Family, Netns, TwoNic,
    bpffs::Bpffs,
    lab::{CLIENT, node_address},
    netns::Entry,
    product::{Product, described},
    traffic::{CheckReport, Target, TcpEcho, UdpEcho},
    wait::{Observation, eventually},
};

/// What the product promises for the repair of what it owns (design section 8).
pub(crate) const REPAIR: Duration = Duration::from_secs(2);
pub(crate) const NICS: [&str; 2] = ["eth0", "eth1"];

/// Servers on both NICs in both families, for as long as they live.
#[derive(Debug)]
pub(crate) struct Servers {
    _tcp: Vec<TcpEcho>,
    _udp: Vec<UdpEcho>,
}

const TCP_PORT: u16 = 80;
const UDP_PORT: u16 = 5356;

impl Servers {
    pub(crate) fn start(lab: &TwoNic) -> Self {
        let addresses = || (0..2).flat_map(|nic| Family::ALL.map(|family| node_address(nic, family)));
        Self {
            _tcp: addresses().map(|ip| TcpEcho::start(&lab.node, SocketAddr::new(ip, TCP_PORT))).collect(),
            _udp: addresses().map(|ip| UdpEcho::start(&lab.node, SocketAddr::new(ip, UDP_PORT))).collect(),
        }
    }
}

/// TCP, UDP and ping to both NICs from the client behind each, in both families.
pub(crate) fn targets(lab: &TwoNic) -> Vec<Target> {
    let both = (0..2).flat_map(|nic| Family::ALL.map(|family| (nic, family)));
    both.flat_map(|(nic, family)| {
        let (gateway, client, address) = (lab.gw(nic).ns(), CLIENT.get(family), node_address(nic, family));
        [
            Target::tcp(gateway, SocketAddr::new(client, 0), SocketAddr::new(address, TCP_PORT)),
            Target::udp(gateway, SocketAddr::new(client, 0), SocketAddr::new(address, UDP_PORT)),
            Target::ping(gateway, client, address),
        ]
    })
    .collect()
}

/// Asks everything once; panics if anything is not answered, or answered by the wrong NIC.
pub(crate) fn everything_is_answered(lab: &TwoNic) {
    for target in targets(lab) {
        target.check(Duration::from_millis(900)).unwrap_or_else(|failure| panic!("{}: {failure}", target.name()));
    }
    nothing_left_by_the_wrong_nic(lab);
}

/// By the gateways' counters, which must have seen answers.
pub(crate) fn nothing_left_by_the_wrong_nic(lab: &TwoNic) {
    for nic in [0, 1] {
        let counters = lab.gw(nic).counters();
        assert_eq!(counters["wrong_source"], 0, "gateway {nic}: {counters:?}");
        assert!(counters["from_node"] > 0, "gateway {nic}: {counters:?}");
    }
}

/// No check failed, and every target was asked.
pub(crate) fn all_passed(reports: &[CheckReport], at_least: usize) {
    for report in reports {
        assert!(report.failed == 0 && report.sent >= at_least, "{report:?}");
    }
}

/// Waits for what is promised within [`REPAIR`] and tells how long it took.
pub(crate) fn repaired<O: Observation>(what: &str, look: impl FnMut() -> O) -> O::Value {
    let start = Instant::now();
    let value = eventually(REPAIR, what, look);
    println!("{what}: {:?}", start.elapsed());
    value
}

/// A length of time below `limit`, another one at every call.
pub(crate) fn random_below(limit: Duration) -> Duration {
    limit.mul_f64((RandomState::new().hash_one(0) >> 11) as f64 / (1_u64 << 53) as f64)
}

/// The programs on a hook in running order, as the kernel lists them.
pub(crate) fn on_hook(node: &Netns, device: &str, direction: Direction) -> Vec<ProgramRef> {
    let link = Ifindex(node.ifindex(device));
    let names = BTreeMap::from([(link, device.to_owned())]);
    // nothing is pinned below this path, so every program is listed as somebody else's
    let nobody = Dataplane::new("/sys/fs/bpf/there-is-no-such-directory");
    let hooks = node.run(|| nobody.hooks(Installed::None, &names, [link]).unwrap());
    match &hooks[&Hook { link, direction }] {
        HookState::Missing { others } => others.clone(),
        other => panic!("{device}: {other:?}"),
    }
}

/// Ids of all programs on the hooks of both NICs, which must be one of ours each.
pub(crate) fn one_program_per_hook(node: &Netns) -> BTreeMap<(&'static str, &'static str), u32> {
    let hooks = NICS.into_iter().flat_map(|nic| Direction::ALL.map(|direction| (nic, direction)));
    hooks
        .map(|(nic, direction)| {
            let programs = on_hook(node, nic, direction);
            let [program] = programs.as_slice() else { panic!("{nic} {direction:?}: {programs:?}") };
            assert_eq!(program.name, direction.name());
            ((nic, direction.name()), program.id)
        })
        .collect()
}

/// The same as the product tells it: each attached, alone on its hook.
pub(crate) fn status_has_one_program_per_hook(status: &Value) {
    for nic in NICS {
        for direction in ["ingress", "egress"] {
            let program = &nic_of(status, nic)["programs"][direction];
            assert_eq!(
                (&program["state"], &program["before"], &program["after"]),
                (&Value::from("attached"), &Value::from(Vec::<String>::new()), &Value::from(Vec::<String>::new())),
                "{nic} {direction}: {program}"
            );
        }
    }
}

/// The entry of a NIC; panics if there is none.
pub(crate) fn nic_of<'a>(status: &'a Value, name: &str) -> &'a Value {
    let nics = status["nics"].as_array().unwrap();
    nics.iter().find(|nic| nic["name"] == name).unwrap_or_else(|| panic!("no {name} in {}", status["nics"]))
}

/// The entry of a destination, by the object it comes from.
pub(crate) fn route_of<'a>(status: &'a Value, destination: &str, entry: &str) -> &'a Value {
    let routes = status["routes"].as_array().unwrap();
    let found = routes.iter().find(|r| r["destination"] == destination && r["from"]["name"] == entry);
    found.unwrap_or_else(|| panic!("no {destination} from {entry} in {}", status["routes"]))
}

/// A condition of a status.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Condition {
    pub(crate) status: String,
    pub(crate) reason: String,
    pub(crate) message: String,
}

impl Condition {
    /// Panics if it is not reported at all.
    pub(crate) fn of(status: &Value, kind: &str) -> Self {
        let conditions = status["conditions"].as_array().unwrap();
        let found = conditions.iter().find(|condition| condition["type"] == kind);
        let found = found.unwrap_or_else(|| panic!("no condition {kind} in {}", status["conditions"]));
        let text = |field: &str| found[field].as_str().unwrap().to_owned();
        Self { status: text("status"), reason: text("reason"), message: text("message") }
    }

    pub(crate) fn holds(&self) -> bool {
        self.status == "True"
    }
}

/// The value of one line of /metrics; 0 if the line is not there.
pub(crate) fn metric(text: &str, series: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    line.map_or(0, |value| value.parse().unwrap_or_else(|error| panic!("{series} {value}: {error}")))
}

/// Routes of the main table that are the product's.
pub(crate) fn own_routes(node: &Netns) -> BTreeSet<String> {
    let list = |family| node.ip(&format!("{family} route show proto 157"));
    let lines = ["-4", "-6"].map(list).concat();
    lines.lines().map(|line| line.trim_end().to_owned()).collect()
}

/// The lines about one destination in the main table.
pub(crate) fn routes_to(node: &Netns, destination: &str) -> Vec<String> {
    let family = if destination.contains(':') { "-6" } else { "-4" };
    let listed = node.ip(&format!("{family} route show exact {destination}"));
    listed.lines().map(|line| line.trim_end().to_owned()).collect()
}

/// `nicpath ARGUMENTS` in the node, with nothing added.
pub(crate) fn nicpath(node: &Netns, product: &Product, arguments: &[&str]) -> Command {
    let mut command = node.command(product.command("status", &[]).get_program());
    command.args(arguments);
    command
}

/// Ran with exit code 0; its standard output.
pub(crate) fn succeeded(output: &Output) -> String {
    assert!(output.status.success(), "{}", described(output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

pub(crate) fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Everything the product could have changed on a node, one line each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Snapshot(BTreeSet<String>);

impl Snapshot {
    /// Routes of every table, rules, links, addresses, queueing disciplines, programs on the hooks, every setting below
    /// /proc/sys/net that exists per NIC, and what lies in the product's directories.
    pub(crate) fn take(node: &Netns, product: &Product) -> Self {
        let mut lines = BTreeSet::new();
        let mut add = |what: &str, text: &str| {
            lines.extend(text.lines().map(|line| format!("{what}: {}", line.trim_end())));
        };
        for family in ["-4", "-6"] {
            add("route", &node.ip(&format!("-d -o {family} route show table all")));
            add("rule", &node.ip(&format!("-d -o {family} rule show")));
        }
        add("link", &node.ip("-d -o link show"));
        add("address", &node.ip("-d -o addr show"));
        add("qdisc", &node.feed("tc", &["qdisc", "show"], ""));
        for nic in NICS {
            for direction in Direction::ALL {
                add("program", &format!("{nic} {direction:?} {:?}", on_hook(node, nic, direction)));
            }
        }
        let settings = node.run(|| {
            let mut found = String::new();
            for tree in ["ipv4/conf", "ipv6/conf", "ipv4/neigh", "ipv6/neigh"] {
                settings(&Path::new("/proc/sys/net").join(tree), &mut found);
            }
            found
        });
        add("setting", &settings);
        for directory in [product.bpffs(), &product.state_dir()] {
            let mut found = String::new();
            files(directory, &mut found);
            add("file", &found);
        }
        Self(lines)
    }

    /// Lines that only one of the two has.
    pub(crate) fn differences(&self, other: &Self) -> Vec<String> {
        let gone = self.0.difference(&other.0).map(|line| format!("- {line}"));
        gone.chain(other.0.difference(&self.0).map(|line| format!("+ {line}"))).collect()
    }
}

fn settings(directory: &Path, found: &mut String) {
    for entry in std::fs::read_dir(directory).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() {
            settings(&path, found);
        } else if let Ok(value) = std::fs::read_to_string(&path) {
            found.push_str(&format!("{} = {}\n", path.display(), value.trim_end().replace('\n', " ")));
        }
    }
}

/// Paths below a directory; none if it does not exist.
fn files(directory: &Path, found: &mut String) {
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        found.push_str(&format!("{}\n", entry.path().display()));
        files(&entry.path(), found);
    }
}

/// Programs of somebody else on the hooks of the node: a copy of ours below a bpffs of its own, which counts what it
/// sees and changes nothing. Detached on drop.
#[derive(Debug)]
pub(crate) struct Foreign {
    entry: Entry,
    _bpffs: Bpffs,
    dataplane: Dataplane,
    /// Id of the program for each direction.
    pub(crate) ids: BTreeMap<Direction, u32>,
    slots: BTreeSet<Slot>,
}

impl Foreign {
    /// Attaches it to both hooks of each device.
    pub(crate) fn attach(node: &Netns, devices: &[&str], position: Position) -> Self {
        let bpffs = Bpffs::mount();
        let dataplane = Dataplane::new(bpffs.path().join("foreign"));
        let links: Vec<Ifindex> = devices.iter().map(|device| Ifindex(node.ifindex(device))).collect();
        let entry = |link: &Ifindex| NicEntry {
            link: *link,
            lower: None,
            network: 1,
            state: AdminState::Up,
            mode: Mode::Observe,
            reply_path: ReplyPath::Off,
            source_guard: SourceGuard::Pass,
            gateways: PerFamily::default(),
        };
        let nics: BTreeMap<Slot, NicEntry> = (0..).zip(links.iter().map(entry)).collect();
        let slots = nics.keys().copied().collect();
        let ids = node.run(|| {
            dataplane.load().unwrap();
            dataplane.publish(&TableSpec { nics, ..TableSpec::default() }).unwrap();
            for link in &links {
                for direction in Direction::ALL {
                    dataplane.attach(Hook { link: *link, direction }, position).unwrap();
                }
            }
            let names = links.iter().copied().zip(devices.iter().map(|device| (*device).to_owned())).collect();
            let hooks = dataplane.hooks(Installed::Current, &names, []).unwrap();
            hooks
                .into_iter()
                .map(|(hook, state)| match state {
                    HookState::Attached { program, .. } => (hook.direction, program),
                    other => panic!("{hook}: {other:?}"),
                })
                .collect()
        });
        Self { entry: node.entry(), _bpffs: bpffs, dataplane, ids, slots }
    }

    /// Packets that ran through it so far, by direction.
    pub(crate) fn packets(&self) -> BTreeMap<Direction, u64> {
        // with no owner in its tables these are all the outcomes there are
        const VERDICTS: [&str; 3] = ["untouched", "kernel", "received"];
        let mut packets = BTreeMap::new();
        for row in self.dataplane.counters(self.slots.iter().copied()).unwrap() {
            if VERDICTS.contains(&row.counter.name()) {
                *packets.entry(row.direction).or_default() += row.packets;
            }
        }
        packets
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        if let Err(error) = self.entry.run(|| self.dataplane.remove()) {
            eprintln!("a foreign program stays: {error}");
        }
    }
}
