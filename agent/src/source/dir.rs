//! Objects from a directory of manifests.
//!
//! [`read_files`] is the only I/O; [`parse`] is pure and finds everything that is wrong with the objects one by one.
//! What is wrong with them together or on a node is found by [`crate::merge`] and later.

mod object;
mod shape;
mod yaml;

use std::{
    fs,
    io::{self, Read as _},
    path::Path,
};

use serde::{Deserialize, Serialize};

use self::{object::Origins, yaml::Document};
use super::{ManifestError, Objects};
use crate::api::Reason;

/// Most bytes of one file.
pub const MAX_FILE_BYTES: u64 = 4 << 20;
/// Most RouteEntries of one directory.
pub const MAX_ROUTE_ENTRIES: usize = 10_000;

/// A manifest file's name and text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ManifestFile {
    pub name: String,
    pub text: String,
}

/// The manifest files of a directory, in name order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ManifestFiles {
    pub files: Vec<ManifestFile>,
    /// What was passed over, one sentence each.
    pub warnings: Vec<String>,
}

/// All objects of the manifests in `dir`.
///
/// # Errors
/// Everything that is wrong with them; there is no partial result.
pub fn read(dir: &Path) -> Result<Objects, Vec<ManifestError>> {
    let ManifestFiles { files, warnings } = read_files(dir)?;
    let objects = parse(&files)?;
    Ok(Objects { warnings, ..objects })
}

/// The text of every `*.yaml`, `*.yml` and `*.json` in `dir`. Hidden files and what editors leave behind are not
/// looked at; links are followed, as config map volumes need.
///
/// # Errors
/// A directory or file that cannot be read, is no regular file, too large, or not UTF-8.
pub fn read_files(dir: &Path) -> Result<ManifestFiles, Vec<ManifestError>> {
    let whole_dir = |error: &io::Error| vec![whole_file(&dir.to_string_lossy(), Reason::Unreadable, error.to_string())];
    let mut names: Vec<String> = vec![];
    for entry in fs::read_dir(dir).map_err(|error| whole_dir(&error))? {
        let entry = entry.map_err(|error| whole_dir(&error))?;
        names.push(entry.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    let mut found = ManifestFiles::default();
    let mut errors = vec![];
    for name in names.into_iter().filter(|name| !name.starts_with(['.', '#'])) {
        let path = dir.join(&name);
        if path.is_dir() {
            found.warnings.push(format!("{name} is a directory and is not read"));
        } else if matches!(path.extension().and_then(|e| e.to_str()), Some("yaml" | "yml" | "json")) {
            match read_file(&path, &name) {
                Ok(text) => found.files.push(ManifestFile { name, text }),
                Err(error) => errors.push(*error),
            }
        }
    }
    if found.files.is_empty() && errors.is_empty() {
        found.warnings.push(format!("{} holds no *.yaml, *.yml or *.json", dir.display()));
    }
    if errors.is_empty() { Ok(found) } else { Err(errors) }
}

fn read_file(path: &Path, name: &str) -> Result<String, Box<ManifestError>> {
    let refuse = |reason, message: String| Box::new(whole_file(name, reason, message));
    let unreadable = |error: &io::Error| refuse(Reason::Unreadable, error.to_string());
    // opening a named pipe would wait for its writer
    if !fs::metadata(path).map_err(|error| unreadable(&error))?.is_file() {
        return Err(refuse(Reason::Unreadable, "is not a regular file".to_owned()));
    }
    let file = fs::File::open(path).map_err(|error| unreadable(&error))?;
    let mut bytes = vec![];
    file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes).map_err(|error| unreadable(&error))?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Err(refuse(Reason::FileTooLarge, format!("is larger than {} MiB", MAX_FILE_BYTES >> 20)));
    }
    String::from_utf8(bytes).map_err(|error| {
        let good = error.utf8_error().valid_up_to();
        let line = 1 + error.as_bytes()[..good].iter().filter(|byte| **byte == b'\n').count();
        Box::new(ManifestError { line: Some(line), ..*refuse(Reason::NotUtf8, "is not UTF-8".to_owned()) })
    })
}

pub(crate) fn whole_file(file: &str, reason: Reason, message: String) -> ManifestError {
    ManifestError {
        file: file.to_owned(),
        line: None,
        document: None,
        kind: String::new(),
        name: String::new(),
        field: String::new(),
        value: String::new(),
        reason,
        message,
        cure: reason.cure().to_owned(),
    }
}

/// All objects of `files`.
///
/// # Errors
/// Everything that is wrong with them one by one, and names that two objects share; there is no partial result.
pub fn parse(files: &[ManifestFile]) -> Result<Objects, Vec<ManifestError>> {
    let mut objects = Objects::default();
    let mut origins = Origins::default();
    let mut errors = vec![];
    for file in files {
        if file.text.starts_with('\u{feff}') {
            let message = "starts with a byte order mark".to_owned();
            errors.push(ManifestError { line: Some(1), ..whole_file(&file.name, Reason::ByteOrderMark, message) });
            continue;
        }
        for document in yaml::documents(&file.text) {
            match document.parse() {
                Ok(None) => {}
                Ok(Some(tree)) => {
                    object::read(&file.name, document.number, &tree, &mut objects, &mut origins, &mut errors);
                }
                Err(error) => errors.push(ManifestError {
                    line: Some(error.line),
                    document: Some(document.number),
                    ..whole_file(&file.name, Reason::NotYaml, format!("is not YAML: {}", error.message))
                }),
            }
        }
    }
    if objects.route_entries.len() > MAX_ROUTE_ENTRIES {
        let count = objects.route_entries.len();
        let message = format!("the directory holds {count} RouteEntries, more than {MAX_ROUTE_ENTRIES}");
        let last = files.last().map_or("", |file| file.name.as_str());
        errors.push(whole_file(last, Reason::TooManyObjects, message));
    }
    if errors.is_empty() { Ok(objects) } else { Err(errors) }
}

/// The 1-based line of `field` in document `number` of `file`; for errors that are found after parsing.
pub fn line_of(files: &[ManifestFile], file: &str, number: usize, field: &str) -> Option<usize> {
    let file = files.iter().find(|candidate| candidate.name == file)?;
    let document = yaml::documents(&file.text).into_iter().find(|document: &Document<'_>| document.number == number)?;
    Some(document.parse().ok()??.line_of(field))
}

#[cfg(test)]
mod tests;
