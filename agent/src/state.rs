//! What must survive a restart and a reboot, as files in the state directory, each replaced in one step.

use std::{
    collections::BTreeMap,
    fs,
    io::{self, Write as _},
    net::IpAddr,
    path::{Path, PathBuf},
};

use ipnet::IpNet;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use nix::{
    errno::Errno,
    fcntl::{Flock, FlockArg},
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::{api::Reason, config::PerFamily, inventory::SysctlKey, source::dir::ManifestFile, status::Problem};

/// The state directory.
#[derive(Debug, Clone)]
pub struct StateDir {
    dir: PathBuf,
}

/// A file of the state directory cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[error("{}: {source}{}", path.display(), hint(.source))]
pub struct StateError {
    path: PathBuf,
    #[source]
    source: io::Error,
}

fn hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::StorageFull => " (free space, or give another --state-dir)",
        io::ErrorKind::ReadOnlyFilesystem => " (give a writable --state-dir)",
        io::ErrorKind::PermissionDenied => " (run as root)",
        _ => "",
    }
}

/// What is remembered.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct State {
    /// Settings as they were before we changed them.
    pub originals: BTreeMap<SysctlKey, String>,
    /// Last known gateways by interface name.
    pub gateways: BTreeMap<String, PerFamily<Option<IpAddr>>>,
    /// The last manifests that were valid, and for whom they were merged.
    pub last_good: Option<LastGood>,
}

/// The last valid configuration as text, so that it is read by the same rules again.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastGood {
    pub node: String,
    pub labels: BTreeMap<String, String>,
    /// What `--protect` said.
    #[serde(default)]
    pub protect: Vec<IpNet>,
    pub files: Vec<ManifestFile>,
}

/// The file's form: JSON has no maps with structured keys.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct StateFile {
    originals: Vec<Original>,
    gateways: BTreeMap<String, Vec<IpAddr>>,
    last_good: Option<LastGood>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Original {
    key: SysctlKey,
    value: String,
}

/// What was reported last, so that a status without an agent knows it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Recorded {
    /// With the times since when they hold.
    pub conditions: Vec<Condition>,
    pub problems: Vec<Problem>,
}

/// Held by whoever changes the node; ends with the process, however that ends.
#[derive(Debug)]
pub struct Lock {
    _file: Flock<fs::File>,
}

/// Whether the lock could be taken.
#[derive(Debug)]
pub enum Locking {
    Taken(Lock),
    /// By the process with this number, as far as it can be told.
    Held(Option<i32>),
}

const STATE: &str = "state.json";
const RECORDED: &str = "recorded.json";
const LOCK: &str = "lock";

impl StateDir {
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self { dir: dir.into() }
    }

    /// What is remembered; nothing if there is no file yet.
    ///
    /// # Errors
    ///
    /// A file that exists and cannot be read or decoded: starting over would forget what to restore.
    pub fn load(&self) -> Result<State, StateError> {
        let file: StateFile = self.read(STATE)?.unwrap_or_default();
        let per_family = |addresses: Vec<IpAddr>| {
            let mut gateways = PerFamily::default();
            for address in addresses {
                *gateways.of_mut(address) = Some(address);
            }
            gateways
        };
        Ok(State {
            originals: file.originals.into_iter().map(|original| (original.key, original.value)).collect(),
            gateways: file.gateways.into_iter().map(|(nic, addresses)| (nic, per_family(addresses))).collect(),
            last_good: file.last_good,
        })
    }

    /// As [`StateDir::load`], but a damaged file is put aside: a node that boots must get its routes, even if what to
    /// restore at the end is then not known.
    pub fn load_or_set_aside(&self) -> (State, Option<Problem>) {
        match self.load() {
            Ok(state) => (state, None),
            Err(error) => {
                let aside = self.dir.join(format!("{STATE}.damaged"));
                let kept = match fs::rename(self.dir.join(STATE), &aside) {
                    Ok(()) => format!("kept as {}", aside.display()),
                    Err(e) => format!("left in place: {e}"),
                };
                let message = format!("{error}; {kept}, starting without it");
                (State::default(), Some(Problem { reason: Reason::Unreadable, message }))
            }
        }
    }

    /// Replaces what is remembered.
    pub fn save(&self, state: &State) -> Result<(), StateError> {
        let file = StateFile {
            originals: state
                .originals
                .iter()
                .map(|(key, value)| Original { key: key.clone(), value: value.clone() })
                .collect(),
            gateways: state
                .gateways
                .iter()
                .map(|(nic, gateways)| (nic.clone(), gateways.v4.into_iter().chain(gateways.v6).collect()))
                .collect(),
            last_good: state.last_good.clone(),
        };
        self.write(STATE, &file)
    }

    /// What was reported last.
    pub fn load_recorded(&self) -> Result<Recorded, StateError> {
        Ok(self.read(RECORDED)?.unwrap_or_default())
    }

    /// See [`StateDir::load_recorded`].
    pub fn save_recorded(&self, recorded: &Recorded) -> Result<(), StateError> {
        self.write(RECORDED, recorded)
    }

    /// Takes the lock unless another process has it.
    pub fn lock(&self) -> Result<Locking, StateError> {
        let path = self.dir.join(LOCK);
        let failed = |source| StateError { path: path.clone(), source };
        fs::create_dir_all(&self.dir).map_err(failed)?;
        let open = fs::OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
        match Flock::lock(open.map_err(failed)?, FlockArg::LockExclusiveNonblock) {
            Ok(mut file) => {
                let mut note = || -> io::Result<()> {
                    file.set_len(0)?;
                    writeln!(file, "{}", std::process::id())
                };
                // the number is for people only
                let _unwritten = note();
                Ok(Locking::Taken(Lock { _file: file }))
            }
            Err((_, Errno::EWOULDBLOCK)) => {
                Ok(Locking::Held(fs::read_to_string(&path).ok().and_then(|text| text.trim().parse().ok())))
            }
            Err((_, errno)) => Err(failed(errno.into())),
        }
    }

    /// Removes our files, and the directory if nothing else is in it.
    pub fn remove(&self) -> Result<(), StateError> {
        for name in [STATE, RECORDED, LOCK] {
            let path = self.dir.join(name);
            match fs::remove_file(&path) {
                Err(source) if source.kind() != io::ErrorKind::NotFound => return Err(StateError { path, source }),
                _ => {}
            }
        }
        match fs::remove_dir(&self.dir) {
            Err(source)
                if !matches!(
                    source.kind(),
                    io::ErrorKind::NotFound | io::ErrorKind::DirectoryNotEmpty | io::ErrorKind::ResourceBusy
                ) =>
            {
                Err(StateError { path: self.dir.clone(), source })
            }
            _ => Ok(()),
        }
    }

    fn read<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>, StateError> {
        let path = self.dir.join(name);
        match fs::read(&path) {
            Ok(bytes) => serde_json::from_slice(&bytes).map(Some).map_err(|e| StateError { path, source: e.into() }),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(StateError { path, source }),
        }
    }

    /// Writes beside, flushes to the disk, renames over: a crash leaves the old file or the new one.
    fn write(&self, name: &str, value: &impl Serialize) -> Result<(), StateError> {
        let path = self.dir.join(name);
        let written = fs::create_dir_all(&self.dir).and_then(|()| replace(&self.dir, &path, value));
        written.map_err(|source| StateError { path, source })
    }
}

fn replace(dir: &Path, path: &Path, value: &impl Serialize) -> io::Result<()> {
    let mut file = tempfile::Builder::new().prefix(".nicpath").tempfile_in(dir)?;
    serde_json::to_writer_pretty(&mut file, value)?;
    file.write_all(b"\n")?;
    file.as_file().sync_all()?;
    file.persist(path).map_err(|e| e.error)?;
    fs::File::open(dir)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inventory::SysctlFamily;

    #[test]
    fn what_is_saved_is_loaded() {
        let dir = tempfile::tempdir().unwrap();
        let state_dir = StateDir::new(dir.path().join("nicpath"));
        assert_eq!(state_dir.load().unwrap(), State::default());
        let key = SysctlKey { family: SysctlFamily::Ipv4, nic: "eth1".into(), name: "rp_filter".into() };
        let gateways = PerFamily { v4: None, v6: Some("fe80::1".parse().unwrap()) };
        let state = State {
            originals: [(key, "1".to_owned())].into(),
            gateways: [("eth1".to_owned(), gateways)].into(),
            last_good: Some(LastGood {
                node: "n".into(),
                labels: BTreeMap::new(),
                protect: vec![],
                files: vec![ManifestFile { name: "a".into(), text: "b".into() }],
            }),
        };
        state_dir.save(&state).unwrap();
        assert_eq!(state_dir.load().unwrap(), state);
        state_dir.remove().unwrap();
        assert!(!dir.path().join("nicpath").exists());
        state_dir.remove().unwrap();
    }

    #[test]
    fn the_lock_is_held_by_one_and_free_when_that_one_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        let state_dir = StateDir::new(dir.path());
        let first = state_dir.lock().unwrap();
        assert!(matches!(first, Locking::Taken(_)));
        let own = i32::try_from(std::process::id()).unwrap();
        assert!(matches!(state_dir.lock().unwrap(), Locking::Held(Some(pid)) if pid == own));
        drop(first);
        assert!(matches!(state_dir.lock().unwrap(), Locking::Taken(_)));
    }

    #[test]
    fn a_damaged_file_is_an_error_that_names_it_and_not_an_empty_memory() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(STATE), "{\"originals\": [").unwrap();
        let error = StateDir::new(dir.path()).load().unwrap_err().to_string();
        assert!(error.contains("state.json"), "{error}");
    }

    #[test]
    fn a_damaged_file_is_kept_aside_when_the_agent_starts() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(STATE), "{").unwrap();
        let state_dir = StateDir::new(dir.path());
        let (state, problem) = state_dir.load_or_set_aside();
        assert_eq!(state, State::default());
        assert!(problem.unwrap().message.contains("state.json.damaged"));
        assert!(dir.path().join("state.json.damaged").exists());
        assert_eq!(state_dir.load_or_set_aside(), (State::default(), None));
    }

    #[test]
    fn foreign_files_in_the_directory_stay() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("mine"), "x").unwrap();
        let state_dir = StateDir::new(dir.path());
        state_dir.save(&State::default()).unwrap();
        state_dir.remove().unwrap();
        assert!(dir.path().join("mine").exists() && !dir.path().join(STATE).exists());
    }
}
