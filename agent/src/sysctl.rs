//! Reads and writes the per-NIC settings below /proc/sys/net, in the network namespace of the calling thread.

use std::{
    collections::BTreeMap,
    fs::{self, OpenOptions},
    io::{self, Write},
    path::PathBuf,
};

use crate::inventory::SysctlKey;

/// IFNAMSIZ without the closing zero.
const NIC_NAME_BYTES: usize = 15;

/// The tree of settings: /proc/sys/net, or a directory that stands for it.
#[derive(Debug, Clone)]
pub struct Sysctls {
    root: PathBuf,
}

impl Default for Sysctls {
    fn default() -> Self {
        Self::at("/proc/sys/net")
    }
}

/// Why a setting could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum SysctlError {
    /// Refused before touching anything: the key would lead elsewhere, or to every NIC.
    #[error("{key} is no setting of one NIC")]
    NotOfOneNic { key: SysctlKey },
    #[error("cannot read {}: {}", path.display(), meaning(source))]
    Read { path: PathBuf, source: io::Error },
    #[error("cannot write `{value}` to {}: {}", path.display(), meaning(source))]
    Write { path: PathBuf, value: String, source: io::Error },
}

/// What the error number means for a file below /proc/sys.
fn meaning(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::EROFS) => {
            "the file system is read-only; in a container mount /proc/sys/net writable or run privileged"
        }
        Some(libc::EPERM | libc::EACCES) => "not permitted; run as root with CAP_NET_ADMIN",
        Some(libc::ENOENT) => "the kernel has no such setting, or the NIC is gone",
        Some(libc::EINVAL | libc::ERANGE) => "the kernel does not take this value",
        _ => "the kernel gave no usual reason",
    }
}

impl Sysctls {
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// The values of the keys, without the newline. A key that does not exist on this kernel or NIC is absent.
    pub fn read<'a>(
        &self,
        keys: impl IntoIterator<Item = &'a SysctlKey>,
    ) -> Result<BTreeMap<SysctlKey, String>, SysctlError> {
        let mut values = BTreeMap::new();
        for key in keys {
            let path = self.path(key)?;
            match fs::read_to_string(&path) {
                Ok(value) => {
                    values.insert(key.clone(), value.trim_end().to_owned());
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(source) => return Err(SysctlError::Read { path, source }),
            }
        }
        Ok(values)
    }

    /// Sets the key; the kernel takes decimal numbers.
    pub fn write(&self, key: &SysctlKey, value: &str) -> Result<(), SysctlError> {
        let path = self.path(key)?;
        // never creates: a setting exists or does not
        OpenOptions::new()
            .write(true)
            .truncate(true)
            .open(&path)
            .and_then(|mut file| file.write_all(format!("{value}\n").as_bytes()))
            .map_err(|source| SysctlError::Write { path, value: value.to_owned(), source })
    }

    fn path(&self, key: &SysctlKey) -> Result<PathBuf, SysctlError> {
        let everywhere = matches!(key.nic.as_str(), "all" | "default");
        if everywhere || key.nic.len() > NIC_NAME_BYTES || !is_file_name(&key.nic) || !is_file_name(&key.name) {
            return Err(SysctlError::NotOfOneNic { key: key.clone() });
        }
        Ok(self.root.join(key.path()))
    }
}

/// One component of a path that stays where it is.
fn is_file_name(name: &str) -> bool {
    !matches!(name, "" | "." | "..") && !name.contains(['/', '\0'])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inventory::SysctlFamily;

    fn key(nic: &str, name: &str) -> SysctlKey {
        SysctlKey { family: SysctlFamily::Ipv4, nic: nic.into(), name: name.into() }
    }

    /// A tree with `ipv4/conf/eth1/rp_filter` = 1.
    fn tree() -> (tempfile::TempDir, Sysctls) {
        let dir = tempfile::tempdir().unwrap();
        let conf = dir.path().join("ipv4/conf/eth1");
        fs::create_dir_all(&conf).unwrap();
        fs::write(conf.join("rp_filter"), "1\n").unwrap();
        let sysctls = Sysctls::at(dir.path());
        (dir, sysctls)
    }

    #[test]
    fn a_missing_setting_is_absent_from_what_was_read() {
        let (_dir, sysctls) = tree();
        let present = key("eth1", "rp_filter");
        let values = sysctls.read(&[present.clone(), key("eth1", "arp_evict_nocarrier"), key("eth9", "rp_filter")]);
        assert_eq!(values.unwrap(), BTreeMap::from([(present, "1".to_owned())]));
    }

    #[test]
    fn a_written_value_is_read_back() {
        let (_dir, sysctls) = tree();
        let key = key("eth1", "rp_filter");
        sysctls.write(&key, "2").unwrap();
        assert_eq!(sysctls.read([&key]).unwrap()[&key], "2");
    }

    #[test]
    fn writing_creates_no_setting_and_says_path_value_and_meaning() {
        let (dir, sysctls) = tree();
        let message = sysctls.write(&key("eth1", "no_such"), "2").unwrap_err().to_string();
        let path = dir.path().join("ipv4/conf/eth1/no_such");
        assert_eq!(
            message,
            format!("cannot write `2` to {}: the kernel has no such setting, or the NIC is gone", path.display())
        );
        assert!(!path.exists());
    }

    #[test]
    fn names_that_lead_elsewhere_or_to_every_nic_are_refused() {
        let (_dir, sysctls) = tree();
        for (nic, name) in [
            ("all", "rp_filter"),
            ("default", "rp_filter"),
            ("", "rp_filter"),
            (".", "rp_filter"),
            ("..", "rp_filter"),
            ("../conf/eth1", "rp_filter"),
            ("eth1/", "rp_filter"),
            ("eth1\0", "rp_filter"),
            ("a-name-too-long-", "rp_filter"),
            ("eth1", "../eth1/rp_filter"),
            ("eth1", ".."),
        ] {
            let key = key(nic, name);
            assert!(matches!(sysctls.read([&key]), Err(SysctlError::NotOfOneNic { .. })), "{key:?}");
            assert!(matches!(sysctls.write(&key, "2"), Err(SysctlError::NotOfOneNic { .. })), "{key:?}");
        }
    }

    #[test]
    fn a_read_only_file_system_is_named_as_the_cause() {
        let path = PathBuf::from("/proc/sys/net/ipv4/conf/eth1/rp_filter");
        let source = io::Error::from_raw_os_error(libc::EROFS);
        let message = SysctlError::Write { path, value: "2".into(), source }.to_string();
        assert!(message.contains("/proc/sys/net/ipv4/conf/eth1/rp_filter"), "{message}");
        assert!(message.contains("read-only"), "{message}");
    }
}
