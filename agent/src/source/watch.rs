//! Tells when a manifest directory may have changed.

use std::{fs, os::unix::fs::MetadataExt as _, path::Path};

use notify::{RecursiveMode, Watcher as _};
use tokio::sync::mpsc;

/// Wakes on any change in a directory, or in what it is a link to.
#[derive(Debug)]
pub struct DirWatch {
    changes: mpsc::Receiver<()>,
    _watcher: notify::RecommendedWatcher,
}

/// The directory cannot be watched.
#[derive(Debug, thiserror::Error)]
#[error("cannot watch {dir}: {source}")]
pub struct WatchError {
    dir: String,
    source: notify::Error,
}

impl DirWatch {
    /// Starts watching.
    pub fn new(dir: &Path) -> Result<Self, WatchError> {
        // one waiting wake-up says as much as many
        let (wake, changes) = mpsc::channel(1);
        let failed = |source| WatchError { dir: dir.display().to_string(), source };
        let mut watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
            // our own reading is no change; a lost event may be one
            let relevant = event.map_or(true, |event| !event.kind.is_access());
            if relevant {
                let _full = wake.try_send(());
            }
        })
        .map_err(failed)?;
        watcher.watch(dir, RecursiveMode::NonRecursive).map_err(failed)?;
        Ok(Self { changes, _watcher: watcher })
    }

    /// Returns after the next change; never again if the watch has died (the caller re-reads from time to time anyway).
    pub async fn changed(&mut self) {
        if self.changes.recv().await.is_none() {
            std::future::pending::<()>().await;
        }
    }
}

/// What a look at a directory's files from outside shows: names, and per file its inode, size and times. Differs after
/// any change, also one that a watch cannot see (the directory is a link that now leads elsewhere, a network file
/// system); costs one stat per file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Fingerprint(Vec<(String, u64, u64, i64, i64)>);

impl Fingerprint {
    /// Of what is there now; of nothing, if the directory cannot be read.
    pub fn of(dir: &Path) -> Self {
        let mut files: Vec<_> = fs::read_dir(dir)
            .into_iter()
            .flatten()
            .filter_map(|entry| {
                let entry = entry.ok()?;
                let name = entry.file_name().to_string_lossy().into_owned();
                // follows links, as reading does
                let data = fs::metadata(entry.path()).ok()?;
                Some((name, data.ino(), data.size(), data.mtime(), data.mtime_nsec()))
            })
            .collect();
        files.sort_unstable();
        Self(files)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fingerprint_tells_content_names_and_the_end_of_a_link_apart() {
        let dir = tempfile::tempdir().unwrap();
        let (a, b, link) = (dir.path().join("a"), dir.path().join("b"), dir.path().join("link"));
        for (at, text) in [(&a, "1"), (&b, "22")] {
            fs::create_dir(at).unwrap();
            fs::write(at.join("x.yaml"), text).unwrap();
        }
        std::os::unix::fs::symlink(&a, &link).unwrap();
        let first = Fingerprint::of(&link);
        assert_eq!(first, Fingerprint::of(&link));
        fs::remove_file(&link).unwrap();
        std::os::unix::fs::symlink(&b, &link).unwrap();
        let second = Fingerprint::of(&link);
        assert_ne!(first, second);
        fs::write(b.join("x.yaml"), "333").unwrap();
        assert_ne!(second, Fingerprint::of(&link));
        assert_eq!(Fingerprint::of(&dir.path().join("absent")), Fingerprint::default());
    }
}
