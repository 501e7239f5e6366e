//! What the demo measured, and the table that shows it.

use std::fmt;
use std::ops::AddAssign;

/// Checks answered of those sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Score {
    pub(crate) answered: u32,
    pub(crate) sent: u32,
}

impl Score {
    pub(crate) fn is_full(self) -> bool {
        self.answered == self.sent && self.sent > 0
    }
}

impl AddAssign for Score {
    fn add_assign(&mut self, other: Self) {
        self.answered += other.answered;
        self.sent += other.sent;
    }
}

impl fmt::Display for Score {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.pad(&format!("{} of {}", self.answered, self.sent))
    }
}

/// What a gateway got from the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Packets {
    /// From its own network.
    pub(crate) right: u64,
    /// From another network: answers that left by the wrong NIC.
    pub(crate) wrong: u64,
}

/// One way, measured.
#[derive(Clone, Debug)]
pub(crate) struct Outcome {
    pub(crate) way: &'static str,
    /// By NIC, then TCP, UDP, ping.
    pub(crate) scores: [[Score; 3]; 2],
    /// By gateway.
    pub(crate) packets: [Packets; 2],
    /// Policy rules in the node.
    pub(crate) rules: usize,
}

impl Outcome {
    /// All checks against one NIC.
    pub(crate) fn score(&self, nic: usize) -> Score {
        let mut sum = Score::default();
        self.scores[nic].iter().for_each(|score| sum += *score);
        sum
    }
}

/// A column for each way.
pub(crate) fn table(outcomes: &[Outcome]) -> String {
    let mut text = String::new();
    let mut row = |head: &str, cell: &dyn Fn(&Outcome) -> String| {
        let cells: String = outcomes.iter().map(|outcome| format!("{:>15}", cell(outcome))).collect();
        text.push_str(format!("{head:<34}{cells}").trim_end());
        text.push('\n');
    };
    row("", &|outcome| outcome.way.to_owned());
    row("checks answered", &|_| String::new());
    for (nic, name) in ["eth0 (user)", "eth1 (management)"].into_iter().enumerate() {
        for (probe, kind) in ["TCP", "UDP", "ping"].into_iter().enumerate() {
            row(&format!("  {name:<18} {kind}"), &|outcome| mark(outcome.scores[nic][probe]));
        }
    }
    row("packets from the node", &|_| String::new());
    for (nic, name) in ["gateway 1", "gateway 2"].into_iter().enumerate() {
        row(&format!("  {name:<18} accepted"), &|outcome| outcome.packets[nic].right.to_string());
        row(&format!("  {:<18} wrong NIC", ""), &|outcome| outcome.packets[nic].wrong.to_string());
    }
    row("policy rules needed", &|outcome| outcome.rules.to_string());
    text
}

fn mark(score: Score) -> String {
    format!("{score} {}", if score.is_full() { '✓' } else { '✗' })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_way_has_its_column_and_a_failure_shows() {
        let full = Score { answered: 10, sent: 10 };
        let none = Score { answered: 0, sent: 10 };
        let packets = |right, wrong| Packets { right, wrong };
        let plain = Outcome {
            way: "plain kernel",
            scores: [[full; 3], [none; 3]],
            packets: [packets(70, 60), packets(0, 0)],
            rules: 0,
        };
        let cured = Outcome {
            way: "policy rules",
            scores: [[full; 3]; 2],
            packets: [packets(70, 0), packets(71, 0)],
            rules: 2,
        };
        assert_eq!((plain.score(0).answered, plain.score(1).answered), (30, 0));
        let text = table(&[plain, cured]);
        let lines: Vec<_> = text.lines().collect();
        let columns = |start: &str| {
            let line = lines.iter().find(|line| line.trim_start().starts_with(start)).unwrap();
            line.chars().skip(34).collect::<String>()
        };
        assert_eq!(columns("eth1 (management)  TCP"), "      0 of 10 ✗     10 of 10 ✓");
        assert_eq!(columns("wrong NIC"), "             60              0");
        assert_eq!(columns("policy rules needed"), "              0              2");
        assert!(lines.iter().all(|line| [15, 21, 64].contains(&line.chars().count())), "{text}");
    }

    #[test]
    fn a_score_without_checks_is_not_full() {
        assert!(!Score::default().is_full());
    }
}
