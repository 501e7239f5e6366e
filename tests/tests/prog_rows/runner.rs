//! The programs, loaded into a private bpffs and run on made packets in a namespace with two NICs.

use std::{
    collections::BTreeMap,
    net::IpAddr,
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

use agent::{
    api::{Mode, ReplyPath, SourceGuard},
    config::PerFamily,
    dataplane::{Dataplane, Events, Explanation, Probe, Run},
    hook::{Direction, Hook, Installed, Position},
    inventory::Ifindex,
    tables::{AdminState, NicEntry, Slot, TableSpec, traced_hop},
};
use ebpf::{
    abi::{Event, MAX_NICS},
    verdict::{Counter, DropReason, Verdict},
};
use ipnet::IpNet;
use nix::{
    sched::{CpuSet, sched_setaffinity},
    unistd::Pid,
};
use tests::{Netns, bpffs::Bpffs};

/// Slots of the two NICs.
pub(crate) const ETH0: Slot = 0;
pub(crate) const ETH1: Slot = 1;

/// TC codes: TC_ACT_UNSPEC, TC_ACT_SHOT, TC_ACT_REDIRECT (include/uapi/linux/pkt_cls.h).
const NEXT: i32 = -1;
const DROP: i32 = 2;
const REDIRECT: i32 = 7;

pub(crate) fn addr(text: &str) -> IpAddr {
    text.parse().unwrap()
}

pub(crate) fn prefix(text: &str) -> IpNet {
    text.parse().unwrap()
}

/// A packet at a hook and what must come of it.
#[derive(Debug)]
pub(crate) struct Row {
    nic: Slot,
    direction: Direction,
    frame: Vec<u8>,
    outcome: Outcome,
}

#[derive(Debug)]
enum Outcome {
    /// The NIC is none of ours: nothing is counted and no question answered.
    Unmanaged,
    /// The verdict's counter rises, and the note's.
    Passes(Counter, Option<Counter>),
    Moved(Slot),
    Dropped(DropReason),
    /// `mode: Observe`
    WouldMove(Slot),
    WouldDrop(DropReason),
}

impl Row {
    fn new(nic: Slot, direction: Direction, frame: Vec<u8>) -> Self {
        Self { nic, direction, frame, outcome: Outcome::Unmanaged }
    }

    pub(crate) fn egress(nic: Slot, frame: Vec<u8>) -> Self {
        Self::new(nic, Direction::Egress, frame)
    }

    pub(crate) fn ingress(nic: Slot, frame: Vec<u8>) -> Self {
        Self::new(nic, Direction::Ingress, frame)
    }

    pub(crate) fn passes(self, verdict: Counter) -> Self {
        Self { outcome: Outcome::Passes(verdict, None), ..self }
    }

    pub(crate) fn passes_noted(self, verdict: Counter, note: Counter) -> Self {
        Self { outcome: Outcome::Passes(verdict, Some(note)), ..self }
    }

    pub(crate) fn moved_to(self, slot: Slot) -> Self {
        Self { outcome: Outcome::Moved(slot), ..self }
    }

    pub(crate) fn dropped(self, reason: DropReason) -> Self {
        Self { outcome: Outcome::Dropped(reason), ..self }
    }

    pub(crate) fn would_move_to(self, slot: Slot) -> Self {
        Self { outcome: Outcome::WouldMove(slot), ..self }
    }

    pub(crate) fn would_drop(self, reason: DropReason) -> Self {
        Self { outcome: Outcome::WouldDrop(reason), ..self }
    }
}

impl Outcome {
    fn code(&self) -> i32 {
        match self {
            Self::Unmanaged | Self::Passes(..) | Self::WouldMove(_) | Self::WouldDrop(_) => NEXT,
            Self::Moved(_) => REDIRECT,
            Self::Dropped(_) => DROP,
        }
    }

    fn verdict(&self) -> Option<Counter> {
        match self {
            Self::Unmanaged => None,
            Self::Passes(verdict, _) => Some(*verdict),
            Self::Moved(_) => Some(Counter::Verdict(Verdict::Redirect)),
            Self::Dropped(_) => Some(Counter::Verdict(Verdict::Drop)),
            Self::WouldMove(_) => Some(Counter::Verdict(Verdict::WouldRedirect)),
            Self::WouldDrop(_) => Some(Counter::Verdict(Verdict::WouldDrop)),
        }
    }

    fn reason(&self) -> Option<Counter> {
        match self {
            Self::Passes(_, note) => *note,
            Self::Dropped(reason) | Self::WouldDrop(reason) => Some(Counter::Drop(*reason)),
            Self::Unmanaged | Self::Moved(_) | Self::WouldMove(_) => None,
        }
    }

    /// The reason, where it is counted: a drop that Observe kept back is none.
    fn counted_reason(&self) -> Option<Counter> {
        self.reason().filter(|_| !matches!(self, Self::WouldDrop(_)))
    }

    fn slot(&self) -> Option<Slot> {
        match self {
            Self::Moved(slot) | Self::WouldMove(slot) => Some(*slot),
            Self::Unmanaged | Self::Passes(..) | Self::Dropped(_) | Self::WouldDrop(_) => None,
        }
    }

    /// Whether an event tells of a packet before which `seen` had the same verdict: of the first drops each, of later
    /// ones and of moves a sample.
    fn is_told(&self, seen: u64) -> bool {
        match self {
            Self::Unmanaged | Self::Passes(..) => false,
            Self::Moved(_) | Self::WouldMove(_) => seen.is_multiple_of(1024),
            Self::Dropped(_) | Self::WouldDrop(_) => seen < 16 || seen.is_multiple_of(256),
        }
    }
}

type Counts = BTreeMap<(Slot, Direction, &'static str), u64>;

/// Everything that counts, of every slot; without zeros.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Tally {
    hooks: Counts,
    moves: BTreeMap<(Slot, Slot), u64>,
}

impl Tally {
    /// How often a hook has counted this.
    pub(crate) fn of(&self, nic: Slot, direction: Direction, counter: Counter) -> u64 {
        self.hooks.get(&(nic, direction, counter.name())).copied().unwrap_or_default()
    }

    /// Packets with a verdict.
    pub(crate) fn packets(&self) -> u64 {
        let verdicts = Counter::ALL.into_iter().filter(|counter| matches!(counter, Counter::Verdict(_)));
        let names: Vec<_> = verdicts.map(Counter::name).collect();
        self.hooks.iter().filter(|((_, _, name), _)| names.contains(name)).map(|(_, packets)| packets).sum()
    }

    fn add(&mut self, row: &Row) {
        for counter in row.outcome.verdict().into_iter().chain(row.outcome.counted_reason()) {
            *self.hooks.entry((row.nic, row.direction, counter.name())).or_default() += 1;
        }
        if let Outcome::Moved(to) = row.outcome {
            *self.moves.entry((row.nic, to)).or_default() += 1;
        }
    }
}

/// Every map but the counters.
#[derive(Debug, PartialEq)]
pub(crate) struct Maps {
    tables: TableSpec,
    moves: BTreeMap<(Slot, Slot), u64>,
    installed: Installed,
    off: bool,
    events: Vec<Event>,
}

pub(crate) struct Runner {
    ns: Netns,
    bpffs: Bpffs,
    dataplane: Dataplane,
    events: Mutex<Events>,
}

/// Interface indexes in every runner: chosen, so that a table can be made before the runner is.
const INDEXES: [u32; 2] = [20, 21];

impl Runner {
    /// With the tables of [`Runner::spec`].
    pub(crate) fn new() -> Self {
        Self::with(&Self::spec())
    }

    pub(crate) fn changed(change: impl FnOnce(&mut TableSpec)) -> Self {
        let mut spec = Self::spec();
        change(&mut spec);
        Self::with(&spec)
    }

    pub(crate) fn with(spec: &TableSpec) -> Self {
        let runner = Self::unpublished();
        runner.publish(spec);
        runner
    }

    /// Loaded, before any table was published.
    pub(crate) fn unpublished() -> Self {
        let ns = Netns::new("prog");
        let [first, second] = INDEXES;
        ns.ip_batch(&format!(
            "link add eth0 index {first} type veth peer name p0\nlink add eth1 index {second} type veth peer name p1\n"
        ));
        let bpffs = Bpffs::mount();
        let dataplane = Dataplane::new(bpffs.path().join("nicpath"));
        dataplane.load().unwrap();
        let events = Mutex::new(dataplane.events().unwrap());
        Self { ns, bpffs, dataplane, events }
    }

    /// Two NICs as in the lab, each with its addresses and gateways; sources nobody owns pass uncounted.
    pub(crate) fn spec() -> TableSpec {
        let nic = |n: usize, v4: &str, v6: &str| NicEntry {
            link: Ifindex(INDEXES[n]),
            lower: None,
            network: n as u16 + 1,
            state: AdminState::Up,
            mode: Mode::Enforce,
            reply_path: ReplyPath::Symmetric,
            source_guard: SourceGuard::Pass,
            gateways: PerFamily { v4: Some(addr(v4)), v6: Some(addr(v6)) },
        };
        TableSpec {
            nics: [(ETH0, nic(0, "10.10.0.1", "fd00:10::1")), (ETH1, nic(1, "10.20.0.1", "fd00:20::1"))].into(),
            owners: [
                (addr("10.10.0.10"), ETH0),
                (addr("fd00:10::10"), ETH0),
                (addr("10.20.0.10"), ETH1),
                (addr("fd00:20::10"), ETH1),
            ]
            .into(),
            ..TableSpec::default()
        }
    }

    pub(crate) fn link(slot: Slot) -> Ifindex {
        Ifindex(INDEXES[slot as usize])
    }

    pub(crate) fn ns(&self) -> &Netns {
        &self.ns
    }

    /// A directory on the runner's bpffs that nicpath does not use.
    pub(crate) fn pins(&self) -> &std::path::Path {
        self.bpffs.path()
    }

    pub(crate) fn publish(&self, spec: &TableSpec) {
        self.dataplane.publish(spec).unwrap();
    }

    pub(crate) fn switch(&self, off: bool) {
        self.dataplane.switch(off).unwrap();
    }

    /// Puts the programs on both hooks of a NIC.
    pub(crate) fn attach(&self, nic: Slot) {
        let hooks = Direction::ALL.map(|direction| Hook { link: Self::link(nic), direction });
        self.ns.run(|| hooks.map(|hook| self.dataplane.attach(hook, Position::First).unwrap()));
    }

    /// Runs a row, as a question and then as a packet, and compares everything.
    #[track_caller]
    #[expect(clippy::needless_pass_by_value, reason = "a row is written where it is run")]
    pub(crate) fn row(&self, row: Row) {
        let before = self.tally();
        let asked = self.explain(row.nic, row.direction, &row.frame);
        let told = asked.map(|answer| (answer.verdict, answer.reason, answer.slot));
        let outcome = &row.outcome;
        let expected = outcome.verdict().map(|verdict| (verdict, outcome.reason(), outcome.slot()));
        assert_eq!(told, expected, "the answer about {row:02x?}");
        assert_eq!(self.tally(), before, "a question was counted: {row:02x?}");
        assert_eq!(self.take_events(), [], "a question is no event: {row:02x?}");

        let ran = self.run(row.nic, row.direction, &row.frame, 1);
        assert_eq!(ran.code, outcome.code(), "{row:02x?}");
        assert_eq!(ran.frame, row.frame, "the packet was changed: {row:02x?}");
        let mut after = before.clone();
        after.add(&row);
        assert_eq!(self.tally(), after, "{row:02x?}");
        let seen = outcome.verdict().map_or(0, |verdict| before.of(row.nic, row.direction, verdict));
        let told = outcome.is_told(seen).then(|| event_of(&row));
        let events = self.take_events().into_iter().map(|event| Event { time_ns: 0, ..event });
        assert_eq!(events.collect::<Vec<_>>(), Vec::from_iter(told), "{row:02x?}");
    }

    /// What the program says about a packet; None if it does not manage the NIC.
    fn explain(&self, nic: Slot, direction: Direction, frame: &[u8]) -> Option<Explanation> {
        let probe = Probe { link: Self::link(nic), direction, frame };
        // a test run looks the interface up in its caller's namespace
        self.ns.run(|| self.dataplane.explain(&probe)).unwrap()
    }

    /// What the program says about a packet that leaves.
    pub(crate) fn answer(&self, nic: Slot, frame: &[u8]) -> Explanation {
        self.explain(nic, Direction::Egress, frame).expect("an answer")
    }

    /// As [`Runner::answer`], for a thread in the runner's namespace.
    pub(crate) fn answer_inside(&self, nic: Slot, frame: &[u8]) -> Explanation {
        let probe = Probe { link: Self::link(nic), direction: Direction::Egress, frame };
        self.dataplane.explain(&probe).unwrap().expect("an answer")
    }

    /// The next hop of a packet that is moved.
    pub(crate) fn hop(&self, nic: Slot, frame: &[u8]) -> IpAddr {
        let family = if frame[12..14] == [0x08, 0x00] { addr("0.0.0.0") } else { addr("::") };
        traced_hop(self.answer(nic, frame).hop, family)
    }

    /// Runs a packet so many times, always on one CPU: samples of events are taken of each CPU's packets.
    pub(crate) fn run(&self, nic: Slot, direction: Direction, frame: &[u8], times: u32) -> Run {
        let probe = Probe { link: Self::link(nic), direction, frame };
        self.ns.run(|| {
            let mut cpu = CpuSet::new();
            cpu.set(0).unwrap();
            sched_setaffinity(Pid::from_raw(0), &cpu).unwrap();
            self.dataplane.run(&probe, times).unwrap()
        })
    }

    pub(crate) fn tally(&self) -> Tally {
        let slots = || 0..MAX_NICS as Slot;
        let hooks = self.dataplane.counters(slots()).unwrap().into_iter().filter(|row| row.packets > 0);
        Tally {
            hooks: hooks.map(|row| ((row.slot, row.direction, row.counter.name()), row.packets)).collect(),
            moves: self.moves(),
        }
    }

    fn moves(&self) -> BTreeMap<(Slot, Slot), u64> {
        let moves = self.dataplane.redirects(0..MAX_NICS as Slot).unwrap().into_iter();
        moves.map(|row| ((row.from, row.to), row.packets)).collect()
    }

    /// The events since this was last asked.
    pub(crate) fn take_events(&self) -> Vec<Event> {
        self.events.lock().unwrap().by_ref().collect::<Result<_, _>>().unwrap()
    }

    pub(crate) fn maps(&self) -> Maps {
        Maps {
            tables: self.dataplane.read_spec().unwrap(),
            moves: self.moves(),
            installed: self.dataplane.installed().unwrap(),
            off: self.dataplane.is_off().unwrap(),
            events: self.take_events(),
        }
    }

    /// Runs `work` while another thread publishes the specs in turn as fast as it can; how often it did.
    pub(crate) fn while_publishing(&self, specs: [&TableSpec; 2], work: impl FnOnce(&Self)) -> usize {
        let (dataplane, done) = (&self.dataplane, AtomicBool::new(false));
        std::thread::scope(|scope| {
            let publisher = scope.spawn(|| {
                let alive = |_: &&TableSpec| !done.load(Ordering::Relaxed);
                specs.into_iter().cycle().take_while(alive).map(|spec| dataplane.publish(spec).unwrap()).count()
            });
            {
                // also when the work panics, else the other thread would never end
                let _end = Ending(&done);
                work(self);
            }
            publisher.join().unwrap()
        })
    }
}

struct Ending<'a>(&'a AtomicBool);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The event of a row that is told of, at no time.
fn event_of(row: &Row) -> Event {
    let (addresses, width, protocol) = if row.frame[12..14] == [0x08, 0x00] { (26, 4, 23) } else { (22, 16, 20) };
    let address = |at: usize| match width {
        4 => IpAddr::from(<[u8; 4]>::try_from(&row.frame[at..at + 4]).unwrap()),
        _ => IpAddr::from(<[u8; 16]>::try_from(&row.frame[at..at + 16]).unwrap()),
    };
    let verdict = row.outcome.verdict().expect("only of managed NICs");
    Event {
        time_ns: 0,
        src: ebpf::abi::Addr::from_ip(address(addresses)),
        dst: ebpf::abi::Addr::from_ip(address(addresses + width)),
        ifindex: Runner::link(row.nic).0,
        to_ifindex: row.outcome.slot().map_or(0, |slot| Runner::link(slot).0),
        direction: row.direction.index(),
        verdict: verdict.index(),
        reason: row.outcome.reason().unwrap_or(verdict).index(),
        protocol: u32::from(row.frame[protocol]),
    }
}
