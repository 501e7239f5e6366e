//! The rules for Rust source.

use super::Violation;
use super::rules::{HOMES, Home, IMPURE_NAMES, MOST_LINES, PURE, UNSAFE};
use super::text::{code_only, words};

/// Everything a file breaks. `path` is relative to the workspace, with `/`.
pub(crate) fn check(path: &str, source: &str) -> Vec<Violation> {
    let mut found = Vec::new();
    let mut violation = |line: usize, rule: String, cure: &str| {
        found.push(Violation { file: path.into(), line, rule, cure: cure.into() });
    };
    let lines = source.lines().count();
    if lines > MOST_LINES {
        let rule = format!("{lines} lines, the most is {MOST_LINES}");
        violation(MOST_LINES + 1, rule, "split the file by what it is about");
    }
    let mut in_use_item = false;
    for (number, line) in (1..).zip(code_only(source).lines()) {
        for (before, word, after) in words(line) {
            in_use_item |= word == "use";
            for home in HOMES {
                if names_crate(home, before, word, after) && !is_under(path, home.allowed) {
                    violation(number, format!("`{word}` is not for this file"), home.cure);
                }
            }
            let environment = word == "env" && (after.starts_with("::") || in_use_item);
            let clock = word == "now" && before.ends_with("::");
            // their tests may take the time of what they call
            let decides = is_under(path, PURE) && !path.contains("/tests");
            if decides && (environment || clock || IMPURE_NAMES.contains(&word)) {
                let cure = "take time, inventory and settings as arguments";
                violation(number, format!("`{word}` in a module that only decides"), cure);
            }
            if word == "unsafe" && !UNSAFE.iter().any(|(file, _reason)| *file == path) {
                let cure = "do without, or list the file with its reason in xtask/src/lint/rules.rs";
                violation(number, "`unsafe` in a file that is not listed for it".into(), cure);
            }
            if word == "ignore" && before.ends_with("#[") {
                violation(number, "a test that is ignored".into(), "make it run or remove it");
            }
            if word == "sleep" && path.starts_with("tests/tests/") {
                violation(number, "a test that sleeps".into(), "poll for the condition with a deadline");
            }
        }
        in_use_item &= !line.contains(';');
    }
    found
}

/// Whether the word is one of the home's crates, not a module or variable of the same name.
fn names_crate(home: &Home, before: &str, word: &str, after: &str) -> bool {
    let is_path = after.starts_with("::") && !before.ends_with("::");
    home.names.contains(&word) && (is_path || before.ends_with("use") || before.ends_with("extern crate"))
}

/// Whether `path` is one of the files, or below one of the folders (which end in `/`).
fn is_under(path: &str, places: &[&str]) -> bool {
    places.iter().any(|place| path == *place || (place.ends_with('/') && path.starts_with(place)))
}

/// Whether any code of the file is unsafe.
pub(crate) fn has_unsafe(source: &str) -> bool {
    code_only(source).lines().flat_map(words).any(|(_, word, _)| word == "unsafe")
}

/// Entries of the table of unsafe files that allow what is no longer there. `present` are the files with unsafe code.
pub(crate) fn check_table(present: &[String]) -> Vec<Violation> {
    UNSAFE
        .iter()
        .filter(|(file, _)| !present.iter().any(|path| path == file))
        .map(|(file, _)| Violation {
            file: "xtask/src/lint/rules.rs".into(),
            line: 1,
            rule: format!("{file} is listed for `unsafe` and has none"),
            cure: "remove the entry".into(),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules_broken(path: &str, source: &str) -> Vec<(usize, String)> {
        check(path, source).into_iter().map(|violation| (violation.line, violation.rule)).collect()
    }

    fn breaks(path: &str, source: &str) -> bool {
        !check(path, source).is_empty()
    }

    #[test]
    fn only_the_dataplane_names_aya() {
        let source = "use std::fs;\nuse aya::Ebpf;\nfn load() -> aya::Ebpf { todo() }\n";
        let expected = "`aya` is not for this file".to_owned();
        assert_eq!(rules_broken("agent/src/node.rs", source), [(2, expected.clone()), (3, expected)]);
        for path in ["agent/src/dataplane.rs", "agent/src/dataplane/maps.rs", "tests/src/run.rs", "benches/src/main.rs"]
        {
            assert!(!breaks(path, source), "{path}");
        }
        assert!(breaks("agent/src/dataplane_of_another.rs", source));
        assert!(breaks("agent/src/node.rs", "use aya;"));
        assert!(!breaks("agent/src/node.rs", "// aya::Ebpf\nlet x = \"aya::Ebpf\"; crate::aya::x(); my_aya::y();"));
    }

    #[test]
    fn only_the_netlink_module_names_rtnetlink() {
        let source = "use netlink_packet_route::link::LinkMessage;\nuse rtnetlink::{Handle, new_connection};";
        assert_eq!(check("agent/src/node.rs", source).len(), 2);
        assert_eq!(check("tests/src/lab.rs", source).len(), 2);
        assert!(!breaks("agent/src/netlink.rs", source));
        assert!(!breaks("agent/src/netlink/routes.rs", source));
    }

    #[test]
    fn kernel_helpers_stay_in_the_ebpf_binary() {
        assert!(breaks("ebpf/src/steer.rs", "use aya_ebpf::programs::TcContext;"));
        assert!(!breaks("ebpf/src/main.rs", "use aya_ebpf::programs::TcContext;"));
    }

    #[test]
    fn a_deciding_module_knows_no_clock_environment_or_outside_world() {
        let pure = "agent/src/plan.rs";
        for source in [
            "use std::time::Instant;",
            "use std::time::{Duration, SystemTime};",
            "let t = std::time::Instant::now();",
            "use std::env;",
            "use std::{\n    collections::BTreeMap,\n    env,\n};",
            "let v = std::env::var(\"A\");",
            "let t = Timestamp::now();",
            "use tokio::fs;",
        ] {
            assert!(breaks(pure, source), "{source}");
            assert!(!breaks("agent/src/node.rs", source), "{source}");
        }
        for source in ["use std::time::Duration;", "let v = env!(\"CARGO_PKG_VERSION\");", "let env = 1; plan.now;"] {
            assert!(!breaks(pure, source), "{source}");
        }
        for path in ["agent/src/api/nic_class.rs", "agent/src/plan/order.rs"] {
            assert!(breaks(path, "use std::env;"), "{path}");
        }
    }

    #[test]
    fn unsafe_needs_its_file_listed() {
        assert!(breaks("agent/src/node.rs", "unsafe { x() }"));
        assert!(!breaks("agent/src/node.rs", "#![allow(unsafe_code)] // unsafe"));
        assert!(!breaks("ebpf/src/main.rs", "unsafe { x() }"));
    }

    #[test]
    fn ignored_and_sleeping_tests_are_refused() {
        assert!(breaks("agent/src/plan.rs", "#[ignore]\nfn t() {}"));
        assert!(breaks("tests/tests/netns_a.rs", "#[ignore = \"later\"]"));
        assert!(breaks("tests/tests/netns_a.rs", "std::thread::sleep(d);"));
        assert!(breaks("tests/tests/prog_a.rs", "tokio::time::sleep(d).await;"));
        assert!(!breaks("tests/src/poll.rs", "std::thread::sleep(d);"));
        assert!(!breaks("tests/tests/netns_a.rs", "Command::new(\"sleep\");"));
    }

    #[test]
    fn a_file_that_is_too_long_is_refused_where_it_becomes_so() {
        assert!(!breaks("agent/src/node.rs", &"\n".repeat(MOST_LINES)));
        let broken = rules_broken("agent/src/node.rs", &"\n".repeat(MOST_LINES + 1));
        assert_eq!(broken, [(MOST_LINES + 1, format!("{} lines, the most is {MOST_LINES}", MOST_LINES + 1))]);
    }

    #[test]
    fn a_table_entry_that_allows_nothing_is_refused() {
        let all: Vec<_> = UNSAFE.iter().map(|(file, _)| (*file).to_owned()).collect();
        assert!(check_table(&all).is_empty());
        assert_eq!(check_table(&all[1..]).len(), 1);
        assert!(has_unsafe("fn f() { unsafe { g() } }"));
        assert!(!has_unsafe("// unsafe\n#![deny(unsafe_code)]"));
    }
}
