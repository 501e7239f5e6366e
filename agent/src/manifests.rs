//! The manifests of one node: read, told apart from what was read before, remembered as text.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use ipnet::IpNet;

use crate::{
    api::Reason,
    config::NodeConfig,
    merge::{NodeIdentity, merge},
    source::{
        ManifestError,
        dir::{self, whole_file},
        watch::Fingerprint,
    },
    state::{LastGood, State},
    status::Problem,
};

/// Reads manifests, keeping the last valid ones.
#[derive(Debug)]
pub struct Manifests {
    dir: PathBuf,
    node: NodeIdentity,
    protect: Vec<IpNet>,
    /// What is wrong with the directory now; the last valid configuration is in force.
    pub errors: Vec<ManifestError>,
    /// The directory as it was when it was read.
    seen: Fingerprint,
}

impl Manifests {
    /// `protect` is remembered with the configuration, for a status without an agent.
    pub fn new(dir: impl Into<PathBuf>, node: NodeIdentity, protect: Vec<IpNet>) -> Self {
        Self { dir: dir.into(), node, protect, errors: Vec::new(), seen: Fingerprint::default() }
    }

    /// The directory's configuration and its text; None if it has errors, which are kept in `errors`. A directory
    /// without any manifest is an error: whoever wants nothing done uninstalls, and a volume that is not mounted yet or
    /// any more must not take the node's routes away.
    pub fn read(&mut self) -> Option<(NodeConfig, LastGood)> {
        // taken before reading: a change in between shows as a difference later
        self.seen = Fingerprint::of(&self.dir);
        let read = dir::read_files(&self.dir).and_then(|read| match read.files.as_slice() {
            [] => Err(vec![self.no_manifests()]),
            _ => Ok(read.files),
        });
        let read = read.and_then(|files| dir::parse(&files).map(|objects| (files, objects)));
        match read {
            Ok((files, objects)) => {
                self.errors.clear();
                let config = merge(&objects, &self.node);
                let last_good = LastGood {
                    node: self.node.name.clone(),
                    labels: self.node.labels.clone(),
                    protect: self.protect.clone(),
                    files,
                };
                Some((config, last_good))
            }
            Err(errors) => {
                self.errors = errors;
                None
            }
        }
    }

    /// Whether the directory differs from what was read.
    pub(crate) fn is_stale(&self) -> bool {
        Fingerprint::of(&self.dir) != self.seen
    }

    /// Waits until nobody writes any more, at most a while: a file that ends at a document's end for now looks complete.
    pub(crate) async fn at_rest(&self) {
        const REST: Duration = Duration::from_millis(20);
        const TIMES: usize = 50;
        let mut last = Fingerprint::of(&self.dir);
        for _ in 0..TIMES {
            tokio::time::sleep(REST).await;
            let now = Fingerprint::of(&self.dir);
            if now == last {
                return;
            }
            last = now;
        }
    }

    fn no_manifests(&self) -> ManifestError {
        ManifestError {
            cure: "put one there; `nicpath uninstall` takes everything back".to_owned(),
            ..whole_file(&self.dir.to_string_lossy(), Reason::Unreadable, "holds no manifest".to_owned())
        }
    }

    /// For whom the objects are merged.
    pub fn node(&self) -> &NodeIdentity {
        &self.node
    }

    /// Where the manifests are.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    pub(crate) fn problems(&self) -> impl Iterator<Item = Problem> + '_ {
        self.errors.iter().map(|error| Problem { reason: error.reason, message: error.to_string() })
    }
}

/// The configuration that was valid last, from an earlier run.
pub fn recall(state: &State) -> Option<NodeConfig> {
    let last = state.last_good.as_ref()?;
    let objects = dir::parse(&last.files).ok()?;
    Some(merge(&objects, &NodeIdentity { name: last.node.clone(), labels: last.labels.clone() }))
}

/// A problem for a directory that does not exist, said before anything starts.
pub fn check_dir(dir: &Path) -> Result<(), Problem> {
    if dir.is_dir() {
        Ok(())
    } else {
        let message = format!("{} is no directory: give the one with the manifests by --manifests", dir.display());
        Err(Problem { reason: Reason::Unreadable, message })
    }
}
