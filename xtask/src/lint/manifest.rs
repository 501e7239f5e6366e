//! The rules for a member's `Cargo.toml`: one table of versions and one of lints, both in the root.

use super::Violation;

/// Everything a manifest breaks. `path` is relative to the workspace.
pub(crate) fn check(path: &str, text: &str) -> Vec<Violation> {
    let mut found = Vec::new();
    let mut violation = |line: usize, rule: String, cure: &str| {
        found.push(Violation { file: path.into(), line, rule, cure: cure.into() });
    };
    let sections = sections(text);
    for section in &sections {
        match dependency_section(&section.name) {
            DependencySection::None => {}
            DependencySection::Table => {
                for (line, entry) in section.entries.iter().filter(|(_, entry)| !is_inherited(entry)) {
                    let name = entry.split(['=', '.']).next().unwrap_or(entry).trim();
                    violation(*line, format!("dependency {name} with a version of its own"), ONE_VERSION);
                }
            }
            DependencySection::One(name) => {
                if !section.entries.iter().any(|(_, entry)| without_spaces(entry).starts_with("workspace=true")) {
                    violation(section.line, format!("dependency {name} with a version of its own"), ONE_VERSION);
                }
            }
        }
    }
    let has_lints = sections
        .iter()
        .filter(|section| section.name == "lints")
        .any(|section| section.entries.iter().any(|(_, entry)| without_spaces(entry).starts_with("workspace=true")));
    if !has_lints {
        let cure = "add the section [lints] with workspace = true";
        violation(1, "the member has not taken over the workspace's lints".into(), cure);
    }
    found
}

const ONE_VERSION: &str = "put it in [workspace.dependencies] of the root and write workspace = true here";

/// A `[name]` and the lines of its key-value pairs, each with its number.
#[derive(Debug, Default)]
struct Section {
    name: String,
    line: usize,
    entries: Vec<(usize, String)>,
}

/// Splits a manifest; a value over several lines becomes one entry.
fn sections(text: &str) -> Vec<Section> {
    let mut sections = vec![Section::default()];
    let mut depth = 0;
    for (number, line) in (1..).zip(text.lines()) {
        let line = without_comment(line).trim();
        if depth == 0 && line.starts_with('[') {
            let name = line.trim_matches(['[', ']']).trim().to_owned();
            sections.push(Section { name, line: number, entries: Vec::new() });
            continue;
        }
        let entries = sections.last_mut().map(|section| &mut section.entries);
        match entries {
            Some(entries) if depth == 0 && !line.is_empty() => entries.push((number, line.to_owned())),
            Some(entries) if depth > 0 => {
                if let Some((_, entry)) = entries.last_mut() {
                    entry.push_str(line);
                }
            }
            _ => {}
        }
        depth += brackets(line);
    }
    sections
}

/// The line up to a `#` outside a string.
fn without_comment(line: &str) -> &str {
    let mut quote = None;
    for (at, c) in line.char_indices() {
        match (quote, c) {
            (None, '#') => return &line[..at],
            (None, '"' | '\'') => quote = Some(c),
            (Some(open), _) if open == c => quote = None,
            _ => {}
        }
    }
    line
}

/// Brackets opened minus brackets closed, outside strings.
fn brackets(line: &str) -> i32 {
    let mut quote = None;
    let mut depth = 0;
    for c in line.chars() {
        match (quote, c) {
            (None, '"' | '\'') => quote = Some(c),
            (None, '[' | '{') => depth += 1,
            (None, ']' | '}') => depth -= 1,
            (Some(open), _) if open == c => quote = None,
            _ => {}
        }
    }
    depth
}

enum DependencySection {
    None,
    /// `[dependencies]`, also of a target or for tests and build scripts.
    Table,
    /// `[dependencies.name]`
    One(String),
}

fn dependency_section(name: &str) -> DependencySection {
    let kinds = ["dependencies", "dev-dependencies", "build-dependencies"];
    // The condition of a target may itself contain dots.
    let rest = match name.strip_prefix("target.") {
        Some(target) => {
            kinds.iter().filter_map(|kind| target.rfind(&format!(".{kind}"))).max().map_or("", |at| &target[at + 1..])
        }
        None => name,
    };
    match rest.split_once('.') {
        None if kinds.contains(&rest) => DependencySection::Table,
        Some((kind, name)) if kinds.contains(&kind) => DependencySection::One(name.to_owned()),
        _ => DependencySection::None,
    }
}

/// `name = { workspace = true, … }` or `name.workspace = true`
fn is_inherited(entry: &str) -> bool {
    let entry = without_spaces(entry);
    let Some((key, value)) = entry.split_once('=') else { return false };
    if key.ends_with(".workspace") {
        return value == "true";
    }
    value.trim_matches(['{', '}']).split(',').any(|part| part == "workspace=true")
}

fn without_spaces(text: &str) -> String {
    text.split_whitespace().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINTS: &str = "[lints]\nworkspace = true\n";

    fn broken(manifest: &str) -> Vec<(usize, String)> {
        check("a/Cargo.toml", manifest).into_iter().map(|violation| (violation.line, violation.rule)).collect()
    }

    #[test]
    fn a_member_that_takes_everything_from_the_workspace_passes() {
        let manifest = format!(
            "[package]\nname = \"a\" # version = \"1\"\n[dependencies]\nserde.workspace = true\n\
             aya = {{ workspace = true, features = [\n  \"x\",\n] }}\n\
             [target.'cfg(target_arch = \"bpf\")'.dependencies]\naya-ebpf = {{ workspace = true }}\n\
             [dev-dependencies.proptest]\nworkspace = true\n{LINTS}"
        );
        assert_eq!(broken(&manifest), []);
    }

    #[test]
    fn a_version_of_its_own_is_named_with_its_line() {
        let manifest =
            format!("{LINTS}[dependencies]\nserde = \"1\"\n\n[build-dependencies]\ncc = {{ version = \"1\" }}\n");
        let expected = [(4, "serde"), (7, "cc")];
        let expected = expected.map(|(line, name)| (line, format!("dependency {name} with a version of its own")));
        assert_eq!(broken(&manifest), expected);
        assert_eq!(broken(&format!("{LINTS}[dependencies.serde]\nversion = \"1\"\n"))[0].0, 3);
        assert_eq!(broken(&format!("{LINTS}[target.'cfg(a.b)'.dev-dependencies]\nserde = \"1\"\n"))[0].0, 4);
        assert_eq!(broken(&format!("{LINTS}[dependencies]\nserde = {{ path = \"workspace=true\" }}\n")).len(), 1);
    }

    #[test]
    fn a_member_without_the_lints_is_refused() {
        let rule = "the member has not taken over the workspace's lints".to_owned();
        assert_eq!(broken("[package]\nname = \"a\"\n"), [(1, rule.clone())]);
        assert_eq!(broken("[lints]\nworkspace = false\n"), [(1, rule.clone())]);
        assert_eq!(broken("# [lints]\n# workspace = true\n"), [(1, rule)]);
    }

    #[test]
    fn other_tables_may_hold_what_they_like() {
        assert_eq!(broken(&format!("[features]\nuser = [\"dep:aya\"]\n[[bin]]\nname = \"b\"\n{LINTS}")), []);
    }
}
