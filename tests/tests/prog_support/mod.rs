//! The programs, loaded into a private bpffs and run on made packets in a namespace with two NICs.
#![expect(clippy::unwrap_used, clippy::panic, reason = "a fixture that cannot do its work fails its test")]

use std::{
    collections::BTreeMap,
    net::IpAddr,
    sync::atomic::{AtomicBool, Ordering},
};

use agent::{
    api::{Mode, ReplyPath, SourceGuard},
    config::PerFamily,
    dataplane::{Dataplane, Events, Explanation, Probe},
    hook::Direction,
    inventory::Ifindex,
    tables::{AdminState, NicEntry, Slot, TableSpec, traced_hop},
};
use ebpf::verdict::{Counter, Verdict};
use ipnet::IpNet;
use tests::{Netns, bpffs::Bpffs};

/// Slots of the two NICs.
pub(crate) const ETH0: Slot = 0;
pub(crate) const ETH1: Slot = 1;

/// TC codes: TC_ACT_UNSPEC, TC_ACT_SHOT, TC_ACT_REDIRECT (include/uapi/linux/pkt_cls.h).
pub(crate) const NEXT: i32 = -1;
pub(crate) const DROP: i32 = 2;
pub(crate) const REDIRECT: i32 = 7;

pub(crate) fn addr(text: &str) -> IpAddr {
    text.parse().unwrap()
}

pub(crate) fn prefix(text: &str) -> IpNet {
    text.parse().unwrap()
}

/// A packet at a hook and what must come of it.
pub(crate) struct Row {
    nic: Slot,
    direction: Direction,
    frame: Vec<u8>,
    expected: Expected,
}

enum Expected {
    Nothing,
    /// A TC code and the counters that rise by one.
    Code(i32, Vec<Counter>),
    Moved(Slot),
    /// A traced run: no counter rises, and the verdict is the one that an untraced run counts.
    Asked,
}

impl Row {
    pub(crate) fn new(nic: Slot, direction: Direction, frame: Vec<u8>) -> Self {
        Self { nic, direction, frame, expected: Expected::Nothing }
    }

    pub(crate) fn passes(self, code: i32, counters: &[Counter]) -> Self {
        Self { expected: Expected::Code(code, counters.to_vec()), ..self }
    }

    pub(crate) fn moved_to(self, slot: Slot) -> Self {
        Self { expected: Expected::Moved(slot), ..self }
    }

    pub(crate) fn asked(self) -> Self {
        Self { expected: Expected::Asked, ..self }
    }
}

type Counts = BTreeMap<(Slot, Direction, &'static str), u64>;

/// Everything that counts.
#[derive(Debug, PartialEq, Eq)]
struct Tally {
    hooks: Counts,
    moves: BTreeMap<(Slot, Slot), u64>,
}

pub(crate) struct Bench {
    ns: Netns,
    _bpffs: Bpffs,
    dataplane: Dataplane,
    links: [Ifindex; 2],
}

/// Interface indexes in every bench: chosen, so that a table can be made before the bench is.
const INDEXES: [u32; 2] = [20, 21];

impl Bench {
    pub(crate) fn new() -> Self {
        Self::with(&Self::spec())
    }

    pub(crate) fn with(spec: &TableSpec) -> Self {
        let ns = Netns::new("prog");
        let [first, second] = INDEXES;
        ns.ip_batch(&format!(
            "link add eth0 index {first} type veth peer name p0\nlink add eth1 index {second} type veth peer name p1\n"
        ));
        let bpffs = Bpffs::mount();
        let dataplane = Dataplane::new(bpffs.path().join("nicpath"));
        dataplane.load().unwrap();
        dataplane.publish(spec).unwrap();
        Self { ns, _bpffs: bpffs, dataplane, links: INDEXES.map(Ifindex) }
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

    pub(crate) fn link(&self, slot: Slot) -> Ifindex {
        self.links[slot as usize]
    }

    pub(crate) fn publish(&self, spec: &TableSpec) {
        self.dataplane.publish(spec).unwrap();
    }

    pub(crate) fn switch(&self, off: bool) {
        self.dataplane.switch(off).unwrap();
    }

    pub(crate) fn events(&self) -> Events {
        self.dataplane.events().unwrap()
    }

    fn probe<'a>(&self, nic: Slot, direction: Direction, frame: &'a [u8]) -> Probe<'a> {
        Probe { link: self.link(nic), direction, frame }
    }

    /// Runs a row and compares everything.
    #[track_caller]
    pub(crate) fn row(&self, row: Row) {
        let probe = self.probe(row.nic, row.direction, &row.frame);
        let mut expected = self.tally();
        let count = |tally: &mut Tally, counter: Counter| {
            *tally.hooks.entry((row.nic, row.direction, counter.name())).or_default() += 1;
        };
        // a test run looks the interface up in its caller's namespace
        let run = || self.ns.run(|| self.dataplane.run(&probe, 1)).unwrap();
        match row.expected {
            Expected::Nothing => panic!("a row without an expectation"),
            Expected::Asked => {
                let asked = self.ns.run(|| self.dataplane.explain(&probe)).unwrap().expect("an answer");
                assert_eq!(self.tally(), expected, "asking has counted something");
                count(&mut expected, asked.verdict);
                if asked.verdict == Counter::Verdict(Verdict::Redirect) {
                    *expected.moves.entry((row.nic, asked.slot.expect("a NIC"))).or_default() += 1;
                }
                run();
            }
            Expected::Code(code, counters) => {
                for counter in counters {
                    count(&mut expected, counter);
                }
                let ran = run();
                assert_eq!(ran.code, code);
                assert_eq!(ran.frame, row.frame, "the packet was changed");
            }
            Expected::Moved(to) => {
                count(&mut expected, Counter::Verdict(Verdict::Redirect));
                *expected.moves.entry((row.nic, to)).or_default() += 1;
                let ran = run();
                assert_eq!(ran.code, REDIRECT);
                assert_eq!(ran.frame, row.frame, "the packet was changed");
            }
        }
        assert_eq!(self.tally(), expected);
    }

    fn explain(&self, nic: Slot, frame: &[u8]) -> Option<Explanation> {
        self.ns.run(|| self.dataplane.explain(&self.probe(nic, Direction::Egress, frame))).unwrap()
    }

    pub(crate) fn answer(&self, nic: Slot, frame: &[u8]) -> Option<Counter> {
        self.explain(nic, frame).map(|answer| answer.verdict)
    }

    /// The NIC a packet would be moved to.
    pub(crate) fn slot(&self, nic: Slot, frame: &[u8]) -> Option<Slot> {
        self.explain(nic, frame).and_then(|answer| answer.slot)
    }

    /// The next hop of a packet that is moved.
    pub(crate) fn hop(&self, nic: Slot, frame: &[u8]) -> IpAddr {
        let family = if frame[12..14] == [0x08, 0x00] { addr("0.0.0.0") } else { addr("::") };
        traced_hop(self.explain(nic, frame).expect("an answer").hop, family)
    }

    pub(crate) fn repeat(&self, nic: Slot, direction: Direction, frame: &[u8], times: u32) {
        self.ns.run(|| self.dataplane.run(&self.probe(nic, direction, frame), times)).unwrap();
    }

    fn tally(&self) -> Tally {
        let slots = || 0..ebpf::abi::MAX_NICS as Slot;
        let hooks = self.dataplane.counters(slots()).unwrap().into_iter();
        let moves = self.dataplane.redirects(slots()).unwrap().into_iter();
        Tally {
            hooks: hooks
                .filter(|row| row.packets > 0)
                .map(|row| ((row.slot, row.direction, row.counter.name()), row.packets))
                .collect(),
            moves: moves.map(|row| ((row.from, row.to), row.packets)).collect(),
        }
    }

    /// Packets counted by a verdict.
    pub(crate) fn total(&self) -> u64 {
        let rows = self.dataplane.counters(0..ebpf::abi::MAX_NICS as Slot).unwrap();
        rows.iter().filter(|row| matches!(row.counter, Counter::Verdict(_))).map(|row| row.packets).sum()
    }

    /// All that the programs look up, and the switch.
    pub(crate) fn maps_but_counters(&self) -> (TableSpec, bool) {
        (self.dataplane.read_spec().unwrap(), self.dataplane.is_off().unwrap())
    }

    /// Runs `work` while another thread publishes the specs in turn as fast as it can.
    pub(crate) fn while_publishing(&self, specs: [&TableSpec; 2], work: impl FnOnce()) {
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for spec in specs.into_iter().cycle() {
                    if done.load(Ordering::Relaxed) {
                        break;
                    }
                    self.dataplane.publish(spec).unwrap();
                }
            });
            // also when the work panics, else the other thread would never end
            let _end = Ending(&done);
            work();
        });
    }
}

struct Ending<'a>(&'a AtomicBool);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
