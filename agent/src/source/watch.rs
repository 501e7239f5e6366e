//! Tells when a manifest directory may have changed.

use std::path::Path;

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
