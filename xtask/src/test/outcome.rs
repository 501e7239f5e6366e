//! What `cargo test` prints, as numbers.

use std::fmt;
use std::time::Duration;

use crate::step::seconds;

/// One line of the final table: a test target.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Row {
    pub(crate) kind: &'static str,
    pub(crate) target: String,
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    pub(crate) elapsed: Duration,
}

impl Row {
    /// Something that should have run and did not.
    pub(crate) fn failure(kind: &'static str, target: &str) -> Self {
        Self { kind, target: target.into(), passed: 0, failed: 1, elapsed: Duration::ZERO }
    }
}

/// Reads the output of one `cargo test`, line by line.
#[derive(Debug)]
pub(crate) struct CargoTest {
    kind: &'static str,
    label: String,
    rows: Vec<Row>,
    /// The target that has started and has not yet told its result.
    running: Option<String>,
}

impl CargoTest {
    /// `label` names the run if it does not get as far as a target.
    pub(crate) fn new(kind: &'static str, label: &str) -> Self {
        Self { kind, label: label.into(), rows: Vec::new(), running: None }
    }

    pub(crate) fn read(&mut self, line: &str) {
        if let Some(target) = started_target(line) {
            self.give_up_running();
            self.running = Some(target);
        } else if let Some(result) = TestResult::parse(line) {
            let target = self.running.take().unwrap_or_else(|| self.label.clone());
            let TestResult { passed, failed, ignored, elapsed } = result;
            self.rows.push(Row { kind: self.kind, target, passed, failed, elapsed });
            if ignored > 0 {
                let target = format!("{ignored} ignored tests: run them or remove them");
                self.rows.push(Row { failed: ignored, ..Row::failure(self.kind, &target) });
            }
        }
    }

    /// The targets that ran tests. A run that failed without one failed test (it did not compile, it crashed) counts
    /// as one failure.
    pub(crate) fn rows(mut self, succeeded: bool, elapsed: Duration) -> Vec<Row> {
        self.give_up_running();
        self.rows.retain(|row| row.passed + row.failed > 0);
        if !succeeded && totals(&self.rows).failed == 0 {
            let target = format!("{} (did not compile or run)", self.label);
            self.rows.push(Row { elapsed, ..Row::failure(self.kind, &target) });
        }
        self.rows
    }

    /// A target that ended without a result has crashed.
    fn give_up_running(&mut self) {
        if let Some(target) = self.running.take() {
            self.rows.push(Row::failure(self.kind, &format!("{target} (crashed)")));
        }
    }
}

/// The target of `Running tests/prog_rows.rs (target/debug/deps/prog_rows-0123…)` or `Doc-tests agent`.
fn started_target(line: &str) -> Option<String> {
    let line = line.trim_start();
    if let Some(package) = line.strip_prefix("Doc-tests ") {
        return Some(format!("{package} (documentation)"));
    }
    let (source, binary) = line.strip_prefix("Running ")?.strip_suffix(')')?.split_once(" (")?;
    let binary = binary.rsplit('/').next()?;
    let name = binary.rsplit_once('-').map_or(binary, |(name, _hash)| name);
    Some(match source.strip_prefix("unittests ") {
        Some(file) => format!("{name} ({file})"),
        None => name.to_owned(),
    })
}

/// `test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 2 filtered out; finished in 0.02s`
#[derive(Clone, Copy, Debug, PartialEq)]
struct TestResult {
    passed: u64,
    failed: u64,
    ignored: u64,
    elapsed: Duration,
}

impl TestResult {
    fn parse(line: &str) -> Option<Self> {
        let (_, parts) = line.trim().strip_prefix("test result: ")?.split_once(". ")?;
        let count = |name: &str| -> Option<u64> {
            parts.split("; ").find_map(|part| part.strip_suffix(name)?.trim().parse().ok())
        };
        let elapsed = parts.rsplit("finished in ").next()?.strip_suffix('s')?.parse().ok()?;
        Some(Self {
            passed: count(" passed")?,
            failed: count(" failed")?,
            ignored: count(" ignored")?,
            elapsed: Duration::try_from_secs_f64(elapsed).ok()?,
        })
    }
}

/// The overall count; displayed as `N passed, M failed`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Totals {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
}

impl fmt::Display for Totals {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} passed, {} failed", self.passed, self.failed)
    }
}

pub(crate) fn totals(rows: &[Row]) -> Totals {
    Totals { passed: rows.iter().map(|row| row.passed).sum(), failed: rows.iter().map(|row| row.failed).sum() }
}

/// The rows below a heading, in columns.
pub(crate) fn table(rows: &[Row]) -> String {
    let width = rows.iter().map(|row| row.target.chars().count()).max().unwrap_or(0).max("target".len());
    let line = |kind: &str, target: &str, passed: &str, failed: &str, time: &str| {
        format!("{kind:<6} {target:<width$} {passed:>7} {failed:>7} {time:>9}\n")
    };
    let mut text = line("kind", "target", "passed", "failed", "time");
    for row in rows {
        let (passed, failed) = (row.passed.to_string(), row.failed.to_string());
        text.push_str(&line(row.kind, &row.target, &passed, &failed, &seconds(row.elapsed)));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(output: &str, succeeded: bool) -> Vec<Row> {
        let mut reader = CargoTest::new("unit", "some");
        output.lines().for_each(|line| reader.read(line));
        reader.rows(succeeded, Duration::from_secs(9))
    }

    fn counts(rows: &[Row]) -> Vec<(&str, u64, u64)> {
        rows.iter().map(|row| (row.target.as_str(), row.passed, row.failed)).collect()
    }

    const OK: &str = "test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 2 filtered out; finished in 1.52s";

    #[test]
    fn each_target_is_a_row_and_empty_ones_are_left_out() {
        let output = format!(
            "   Compiling agent v0.1.0 (/src)\n     \
             Running unittests src/lib.rs (target/debug/deps/agent-0a1b)\n\nrunning 3 tests\ntest a ... ok\n\n{OK}\n\n     \
             Running unittests src/main.rs (target/debug/deps/nicpath-77)\n\n{}\n\n   \
             Doc-tests agent\n\n{OK}\n     Running tests/prog_rows.rs (/t/debug/deps/prog_rows-9)\n{OK}\n",
            OK.replace("3 passed", "0 passed")
        );
        let rows = read(&output, true);
        let expected = [("agent (src/lib.rs)", 3, 0), ("agent (documentation)", 3, 0), ("prog_rows", 3, 0)];
        assert_eq!(counts(&rows), expected);
        assert_eq!(rows[0].elapsed, Duration::from_millis(1520));
        assert_eq!(totals(&rows).to_string(), "9 passed, 0 failed");
    }

    #[test]
    fn failed_tests_are_counted_once() {
        let failed =
            "test result: FAILED. 1 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s";
        let rows = read(&format!("     Running tests/a.rs (deps/a-1)\n{failed}\nerror: test failed"), false);
        assert_eq!(counts(&rows), [("a", 1, 2)]);
    }

    #[test]
    fn a_run_that_does_not_compile_is_one_failure() {
        let rows = read("error[E0425]: cannot find value\nerror: could not compile `some`", false);
        assert_eq!(counts(&rows), [("some (did not compile or run)", 0, 1)]);
        assert_eq!(rows[0].elapsed, Duration::from_secs(9));
    }

    #[test]
    fn a_target_that_dies_without_a_result_is_one_failure_and_the_next_still_counts() {
        let output =
            format!("     Running tests/a.rs (deps/a-1)\nrunning 1 test\n     Running tests/b.rs (deps/b-1)\n{OK}");
        assert_eq!(counts(&read(&output, false)), [("a (crashed)", 0, 1), ("b", 3, 0)]);
        let last = "     Running tests/a.rs (deps/a-1)\nrunning 1 test";
        assert_eq!(counts(&read(last, false)), [("a (crashed)", 0, 1)]);
    }

    #[test]
    fn an_ignored_test_is_a_failure() {
        let rows = read(&OK.replace("0 ignored", "2 ignored"), true);
        assert_eq!(totals(&rows), Totals { passed: 3, failed: 2 });
    }

    #[test]
    fn words_of_a_test_that_only_look_alike_count_nothing() {
        let output = "Running away (not a target)\nthe test result: ok. 3 passed\ntest result: ok. many passed";
        assert_eq!(started_target("Running late"), None);
        assert_eq!(totals(&read(output, true)).passed, 0);
    }

    #[test]
    fn the_table_lines_up() {
        let rows = [Row::failure("unit", "a"), Row::failure("netns", "a_longer_name")];
        let text = table(&rows);
        let lengths: Vec<_> = text.lines().map(str::len).collect();
        assert_eq!(lengths, [lengths[0]; 3], "{text}");
    }
}
