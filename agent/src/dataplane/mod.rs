//! The kernel's BPF side: programs, links, pins, maps. The only module that knows aya.
//!
//! Everything lives below one directory of a bpffs, so it outlives every process:
//! `TABLES` … `EVENTS` (maps), `ingress`, `egress` (programs), `links/IFINDEX-DIRECTION` (attachments).
//! Programs are current if META names this binary's object and ABI; otherwise they are loaded anew beside the old ones,
//! which work on until each attachment has been switched over in one step.

mod counters;
mod error;
mod events;
mod logs;
mod object;
mod raw;
mod trace;

use std::{
    collections::{BTreeMap, HashMap},
    fs, io,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use aya::{
    EbpfLoader, VerifierLogLevel,
    maps::{Array, ArrayOfMaps, LpmTrie, Map, MapData, MapError, lpm_trie::Key},
    programs::{
        LinkOrder, ProgramInfo, SchedClassifier, TcAttachType,
        links::{FdLink, PinnedLink},
        tc::{SchedClassifierLink, TcAttachOptions},
    },
};
use ebpf::abi::{
    ABI_VERSION, Meta, NextHopKey, NextHopValue, PrefixOwner, SWITCH_OFF, Switches, Tables,
    map::{self, META, NEXT_HOPS, OWNED_PREFIXES, SWITCHES, TABLES},
};
use ipnet::IpNet;

pub use self::{
    counters::{CounterRow, RedirectRow},
    error::DataplaneError,
    events::Events,
    logs::ProgramLogs,
    trace::{Explanation, Probe, Run},
};
use crate::{
    hook::{Direction, Hook, HookState, Installed, ObservedPrograms, Position, ProgramRef},
    inventory::Ifindex,
    tables::{Hop, Slot, TableSpec, hop_key, hop_of_key, prefix_key, prefix_of_key},
};

type Result<T, E = DataplaneError> = std::result::Result<T, E>;

const LINKS_DIR: &str = "links";

/// Access to one directory on a bpffs.
#[derive(Debug)]
pub struct Dataplane {
    dir: PathBuf,
}

impl Dataplane {
    /// `dir` need not exist yet; its file system must be a bpffs by the time something is loaded.
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self { dir: dir.into() }
    }

    /// Identifies the object inside this binary (64-bit FNV-1a over its bytes).
    pub fn build_id() -> u64 {
        object::bytes()
            .iter()
            .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
    }

    /// Whether programs and maps are pinned, and whose.
    pub fn installed(&self) -> Result<Installed> {
        let all = map::ALL.iter().copied().chain(Direction::ALL.map(Direction::name));
        if !all.into_iter().all(|name| self.dir.join(name).exists()) {
            return Ok(Installed::None);
        }
        let meta = match self.meta() {
            Ok(meta) => meta,
            Err(_) => return Ok(Installed::OtherAbi { version: 0 }),
        };
        Ok(if meta.abi_version != ABI_VERSION {
            Installed::OtherAbi { version: meta.abi_version }
        } else if meta.build == Self::build_id() {
            Installed::Current
        } else {
            Installed::OtherBuild
        })
    }

    /// Reads what is installed and published. Hooks are read apart ([`Dataplane::hooks`]): which of them matter follows
    /// from what is read here.
    pub fn observe(&self) -> Result<ObservedPrograms> {
        let installed = self.installed()?;
        let (tables, switched_off) = match installed {
            Installed::Current | Installed::OtherBuild => (self.read_spec()?, self.is_off()?),
            Installed::None | Installed::OtherAbi { .. } => (TableSpec::default(), false),
        };
        Ok(ObservedPrograms { installed, tables, hooks: BTreeMap::new(), switched_off })
    }

    /// Of the hooks those of `managed` NICs and those that have a pinned link: what can change behind our back. `names`
    /// has every link of the host.
    pub fn hooks(
        &self,
        installed: Installed,
        names: &BTreeMap<Ifindex, String>,
        managed: impl IntoIterator<Item = Ifindex>,
    ) -> Result<BTreeMap<Hook, HookState>> {
        let mut current = HashMap::new();
        for direction in Direction::ALL {
            current.insert(direction, self.pinned_program(direction));
        }
        let mut hooks = BTreeMap::new();
        let asked = managed.into_iter().flat_map(|link| Direction::ALL.map(|direction| Hook { link, direction }));
        for hook in self.pinned_links()?.into_iter().chain(asked) {
            let name = names.get(&hook.link);
            let wanted = match installed {
                Installed::None | Installed::OtherAbi { .. } | Installed::OtherBuild => None,
                Installed::Current => current.get(&hook.direction).copied().flatten(),
            };
            hooks.insert(hook, self.hook_state(hook, name.map(String::as_str), wanted));
        }
        Ok(hooks)
    }

    /// Loads this binary's programs, keeping maps of the same layout, and pins both. What is attached runs on.
    pub fn load(&self) -> Result<()> {
        let file = |path: &Path, source| DataplaneError::File { path: path.to_owned(), source };
        let links = self.dir.join(LINKS_DIR);
        fs::create_dir_all(&links).map_err(|e| file(&links, e))?;
        if matches!(self.installed()?, Installed::OtherAbi { .. }) {
            // The running programs keep the old maps alive; new ones take their names.
            for name in map::ALL {
                remove_file(&self.dir.join(name))?;
            }
        }
        let paths: Vec<(&str, PathBuf)> = map::ALL.iter().map(|name| (*name, self.dir.join(name))).collect();
        let mut loader = EbpfLoader::new();
        loader.verifier_log_level(VerifierLogLevel::STATS | VerifierLogLevel::VERBOSE);
        for (name, path) in &paths {
            loader.map_pin_path(name, path);
        }
        let mut ebpf = loader.load(object::bytes()).map_err(|e| DataplaneError::Load(Box::new(e)))?;
        for direction in Direction::ALL {
            let program = direction.name();
            let refused = |e| DataplaneError::Verifier { program, source: Box::new(e) };
            let loaded: &mut SchedClassifier = ebpf
                .program_mut(program)
                .ok_or_else(|| refused(aya::programs::ProgramError::NotLoaded))?
                .try_into()
                .map_err(refused)?;
            loaded.load().map_err(refused)?;
            // Renaming over the old pin leaves no moment without one. A bpffs takes no name with a dot.
            let path = self.dir.join(program);
            let fresh = self.dir.join(format!("{program}-new"));
            remove_file(&fresh)?;
            loaded.pin(&fresh).map_err(|source| DataplaneError::Pin { path: fresh.clone(), source })?;
            fs::rename(&fresh, &path).map_err(|e| file(&path, e))?;
        }
        // of no build until the commit, but of this layout: a load that is broken off must not cost the next one its maps
        self.set_meta(Meta { abi_version: ABI_VERSION, ..Meta::default() })
    }

    /// Records that every attachment runs this binary's programs.
    pub fn commit(&self) -> Result<()> {
        self.set_meta(Meta { abi_version: ABI_VERSION, _pad: 0, build: Self::build_id() })
    }

    /// Replaces what the programs look up. Entries of the tries come before the tables that need them and go after.
    pub fn publish(&self, spec: &TableSpec) -> Result<()> {
        let generation = match self.read_tables()? {
            Some(tables) => tables.generation + 1,
            None => 1,
        };
        let tables = spec.to_tables(generation)?;
        let old_prefixes = self.read_prefixes()?;
        let old_hops = self.read_hops()?;

        let mut prefixes = self.prefixes()?;
        for (net, slot) in spec.prefixes.iter().filter(|(net, slot)| old_prefixes.get(net) != Some(slot)) {
            let (bits, bytes) = prefix_key(*net);
            prefixes
                .insert(&Key::new(bits, bytes), PrefixOwner { slot: *slot }, 0)
                .map_err(|e| on(OWNED_PREFIXES, e))?;
        }
        let mut hops = self.hops()?;
        for ((slot, net), hop) in spec.hops.iter().filter(|(key, hop)| old_hops.get(key) != Some(hop)) {
            let (bits, key) = hop_key(*slot, *net);
            hops.insert(&Key::new(bits, key), hop.to_abi(), 0).map_err(|e| on(NEXT_HOPS, e))?;
        }

        let mut inner = Array::<MapData, Tables>::create(1, 0).map_err(|e| on(TABLES, e))?;
        let value: &Tables = &tables;
        inner.set(0, value, 0).map_err(|e| on(TABLES, e))?;
        let mut outer: ArrayOfMaps<MapData, Array<MapData, Tables>> = self.open_map(TABLES)?;
        outer.set(0, &inner, 0).map_err(|e| on(TABLES, e))?;

        for net in old_prefixes.keys().filter(|net| !spec.prefixes.contains_key(net)) {
            let (bits, bytes) = prefix_key(*net);
            prefixes.remove(&Key::new(bits, bytes)).map_err(|e| on(OWNED_PREFIXES, e))?;
        }
        for (slot, net) in old_hops.keys().filter(|key| !spec.hops.contains_key(key)) {
            let (bits, key) = hop_key(*slot, *net);
            hops.remove(&Key::new(bits, key)).map_err(|e| on(NEXT_HOPS, e))?;
        }
        Ok(())
    }

    /// Puts this binary's program on a hook where none of ours runs, and pins the attachment.
    pub fn attach(&self, hook: Hook, position: Position) -> Result<()> {
        let path = self.link_path(hook);
        remove_file(&path)?;
        let name = interface_name(hook.link)?;
        let refused = |e| DataplaneError::Attach { hook, source: Box::new(e) };
        let mut program = self.program(hook.direction)?;
        let order = match position {
            Position::First => LinkOrder::first(),
            Position::Last => LinkOrder::last(),
        };
        let id = program
            .attach_with_options(&name, attach_type(hook.direction), TcAttachOptions::TcxOrder(order))
            .map_err(refused)?;
        let link: FdLink = program
            .take_link(id)
            .map_err(refused)?
            .try_into()
            .map_err(|source| DataplaneError::Link { path: path.clone(), source })?;
        // A link that is not pinned yet ends with its descriptor: dying here leaves nothing behind.
        link.pin(&path).map_err(|source| DataplaneError::Pin { path, source })?;
        Ok(())
    }

    /// Switches a live attachment to this binary's program in one step (BPF_LINK_UPDATE).
    pub fn refresh(&self, hook: Hook) -> Result<()> {
        let path = self.link_path(hook);
        let broken = |source| DataplaneError::Link { path: path.clone(), source };
        let link: SchedClassifierLink =
            FdLink::from(PinnedLink::from_pin(&path).map_err(broken)?).try_into().map_err(broken)?;
        let refused = |e| DataplaneError::Attach { hook, source: Box::new(e) };
        let mut program = self.program(hook.direction)?;
        let id = program.attach_to_link(link).map_err(refused)?;
        // Taken out so that dropping the handle of the program detaches nothing; the pin holds the link.
        drop(program.take_link(id).map_err(refused)?);
        Ok(())
    }

    /// Takes our program off a hook; nothing to do is success.
    pub fn detach(&self, hook: Hook) -> Result<()> {
        let path = self.link_path(hook);
        let Some(id) = link_program(&path) else {
            return remove_file(&path);
        };
        remove_file(&path)?;
        // Some kernels finish a moment later.
        const LIMIT: Duration = Duration::from_secs(1);
        let start = Instant::now();
        while start.elapsed() < LIMIT {
            let Ok(name) = interface_name(hook.link) else {
                break;
            };
            if !on_hook(&name, hook.direction).iter().any(|program| program.id == id) {
                break;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// Takes back a load that nothing is attached to; what runs keeps its pins.
    pub fn unload(&self) -> Result<()> {
        if self.pinned_links()?.is_empty() { self.remove() } else { Ok(()) }
    }

    /// Removes every pin, and with them programs, links and maps.
    pub fn remove(&self) -> Result<()> {
        for hook in self.pinned_links()? {
            self.detach(hook)?;
        }
        let programs = Direction::ALL.map(Direction::name);
        for name in map::ALL.into_iter().chain(programs) {
            remove_file(&self.dir.join(name))?;
            remove_file(&self.dir.join(format!("{name}-new")))?;
        }
        for dir in [self.dir.join(LINKS_DIR), self.dir.clone()] {
            match fs::remove_dir(&dir) {
                Ok(()) => {}
                // not ours to remove: a mount point, or somebody else's files in it
                Err(e)
                    if matches!(
                        e.kind(),
                        io::ErrorKind::NotFound | io::ErrorKind::DirectoryNotEmpty | io::ErrorKind::ResourceBusy
                    ) => {}
                Err(source) => return Err(DataplaneError::File { path: dir, source }),
            }
        }
        Ok(())
    }

    /// Whether `nicpath off` is in force.
    pub fn is_off(&self) -> Result<bool> {
        let switches: Array<MapData, Switches> = self.open_map(SWITCHES)?;
        Ok(switches.get(&0, 0).map_err(|e| on(SWITCHES, e))?.flags & SWITCH_OFF != 0)
    }

    /// Makes the running programs pass everything, or decide again; from the next packet on.
    pub fn switch(&self, off: bool) -> Result<()> {
        let mut switches: Array<MapData, Switches> = self.open_map(SWITCHES)?;
        switches.set(0, Switches { flags: if off { SWITCH_OFF } else { 0 } }, 0).map_err(|e| on(SWITCHES, e))
    }

    /// The tables in force.
    pub fn read_spec(&self) -> Result<TableSpec> {
        Ok(match self.read_tables()? {
            Some(tables) => TableSpec::from_parts(&tables, self.read_prefixes()?, self.read_hops()?),
            None => TableSpec::default(),
        })
    }

    fn meta(&self) -> Result<Meta> {
        let meta: Array<MapData, Meta> = self.open_map(META)?;
        meta.get(&0, 0).map_err(|e| on(META, e))
    }

    fn set_meta(&self, value: Meta) -> Result<()> {
        let mut meta: Array<MapData, Meta> = self.open_map(META)?;
        meta.set(0, value, 0).map_err(|e| on(META, e))
    }

    fn read_tables(&self) -> Result<Option<Box<Tables>>> {
        let outer: ArrayOfMaps<MapData, MapData> = self.open_map(TABLES)?;
        match outer.get(&0, 0) {
            Ok(inner) => {
                raw::read_tables(&inner).map(Some).map_err(|source| DataplaneError::Read { map: TABLES, source })
            }
            Err(MapError::KeyNotFound) => Ok(None),
            Err(e) => Err(on(TABLES, e)),
        }
    }

    fn prefixes(&self) -> Result<LpmTrie<MapData, [u8; 16], PrefixOwner>> {
        self.open_map(OWNED_PREFIXES)
    }

    fn read_prefixes(&self) -> Result<BTreeMap<IpNet, Slot>> {
        let mut found = BTreeMap::new();
        for entry in self.prefixes()?.iter() {
            let (key, owner) = entry.map_err(|e| on(OWNED_PREFIXES, e))?;
            if let Some(net) = prefix_of_key(key.prefix_len(), key.data()) {
                found.insert(net, owner.slot);
            }
        }
        Ok(found)
    }

    fn hops(&self) -> Result<LpmTrie<MapData, NextHopKey, NextHopValue>> {
        self.open_map(NEXT_HOPS)
    }

    fn read_hops(&self) -> Result<BTreeMap<(Slot, IpNet), Hop>> {
        let mut found = BTreeMap::new();
        for entry in self.hops()?.iter() {
            let (key, value) = entry.map_err(|e| on(NEXT_HOPS, e))?;
            if let Some(place) = hop_of_key(key.prefix_len(), key.data()) {
                found.insert(place, Hop::from_abi(value));
            }
        }
        Ok(found)
    }

    fn open_map<M: TryFrom<Map, Error = MapError>>(&self, name: &'static str) -> Result<M> {
        let data = MapData::from_pin(self.dir.join(name)).map_err(|e| on(name, e))?;
        Map::from_map_data(data).and_then(M::try_from).map_err(|e| on(name, e))
    }

    fn program(&self, direction: Direction) -> Result<SchedClassifier> {
        let program = direction.name();
        SchedClassifier::from_pin(self.dir.join(program))
            .map_err(|e| DataplaneError::Verifier { program, source: Box::new(e) })
    }

    fn pinned_program(&self, direction: Direction) -> Option<u32> {
        ProgramInfo::from_pin(self.dir.join(direction.name())).ok().map(|info| info.id())
    }

    fn link_path(&self, hook: Hook) -> PathBuf {
        self.dir.join(LINKS_DIR).join(format!("{}-{}", hook.link, hook.direction.name()))
    }

    /// Hooks that have a pinned link.
    fn pinned_links(&self) -> Result<Vec<Hook>> {
        let dir = self.dir.join(LINKS_DIR);
        let file = |source| DataplaneError::File { path: dir.clone(), source };
        let entries = match fs::read_dir(&dir) {
            Ok(entries) => entries,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(e) => return Err(file(e)),
        };
        let mut hooks = Vec::new();
        for entry in entries {
            let name = entry.map_err(file)?.file_name();
            let parsed = name.to_str().and_then(|name| name.split_once('-')).and_then(|(index, direction)| {
                let direction = Direction::ALL.into_iter().find(|d| d.name() == direction)?;
                Some(Hook { link: Ifindex(index.parse().ok()?), direction })
            });
            hooks.extend(parsed);
        }
        Ok(hooks)
    }

    /// A link that outlived its device still opens, so the device is asked whether the link's program runs there.
    fn hook_state(&self, hook: Hook, name: Option<&str>, wanted: Option<u32>) -> HookState {
        let pinned = link_program(&self.link_path(hook));
        let others = name.map(|name| on_hook(name, hook.direction)).unwrap_or_default();
        let Some(program) = pinned else {
            return HookState::Missing { others };
        };
        let Some(place) = others.iter().position(|other| other.id == program) else {
            return HookState::Dead;
        };
        HookState::Attached {
            program,
            current: wanted == Some(program),
            before: others[..place].to_vec(),
            after: others[place + 1..].to_vec(),
        }
    }
}

fn on(map: &'static str, source: MapError) -> DataplaneError {
    DataplaneError::Map { map, source: Box::new(source) }
}

fn attach_type(direction: Direction) -> TcAttachType {
    match direction {
        Direction::Ingress => TcAttachType::Ingress,
        Direction::Egress => TcAttachType::Egress,
    }
}

/// The program a pinned link runs.
fn link_program(path: &Path) -> Option<u32> {
    let link = FdLink::from(PinnedLink::from_pin(path).ok()?);
    link.info().ok().map(|info| info.program_id())
}

/// All TCX programs of a hook in running order; none where the device is gone or the kernel has no TCX.
fn on_hook(name: &str, direction: Direction) -> Vec<ProgramRef> {
    let Ok((_, programs)) = SchedClassifier::query_tcx(name, attach_type(direction)) else {
        return Vec::new();
    };
    programs
        .iter()
        .map(|info| ProgramRef { id: info.id(), name: info.name_as_str().unwrap_or("?").to_owned() })
        .collect()
}

fn interface_name(link: Ifindex) -> Result<String> {
    nix::net::if_::if_indextoname(link.0)
        .ok()
        .and_then(|name| name.into_string().ok())
        .ok_or(DataplaneError::LinkGone(link))
}

fn remove_file(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Ok(()) => Ok(()),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(source) => Err(DataplaneError::File { path: path.to_owned(), source }),
    }
}
