//! The figures as a table, ratios first, each goal beside its figure.

use std::fmt;

use serde::Serialize;

use crate::{
    programs,
    roundtrip::{self, Way},
    stats::Summary,
};

/// Everything that was measured.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) programs: Vec<programs::Row>,
    pub(crate) trips: Vec<roundtrip::Row>,
}

/// A figure with its goal (design section 11).
struct Goal {
    what: String,
    figure: f64,
    unit: &'static str,
    /// Met if the figure is at most this.
    limit: f64,
}

impl Report {
    fn trip(&self, way: Way, sources: usize) -> f64 {
        self.trips.iter().find(|row| row.way == way && row.sources == sources).map_or(f64::NAN, |row| row.p50_us.median)
    }

    fn goals(&self) -> Vec<Goal> {
        let owned = self
            .programs
            .iter()
            .filter(|row| matches!(row.path, "ingress, to an owned address" | "egress, owned here"));
        let mut goals: Vec<Goal> = owned
            .map(|row| Goal {
                what: format!("{}, {}, {} owned addresses, above empty", row.path, row.family, row.owners),
                figure: row.above_empty,
                unit: "ns",
                limit: 15.0,
            })
            .collect();
        let empty = self.trip(Way::EmptyPrograms, 1);
        let rules = self.trip(Way::PolicyRules, 1);
        let ratio = |what: &str, figure, limit| Goal { what: what.to_owned(), figure, unit: "×", limit };
        goals.push(ratio("round trip, nothing moved : empty programs", self.trip(Way::NicpathOwned, 1) / empty, 1.05));
        goals.push(ratio("round trip, moved : empty programs", self.trip(Way::NicpathMoved, 1) / empty, 1.15));
        goals.push(ratio("round trip, moved : policy rules, 1 source", self.trip(Way::NicpathMoved, 1) / rules, 1.0));
        let added_rules = self.trip(Way::PolicyRules, 1000) - rules;
        let added = self.trip(Way::NicpathMoved, 1000) - self.trip(Way::NicpathMoved, 1);
        goals.push(ratio("added latency at 1000 sources, nicpath : policy rules", added / added_rules, 0.05));
        goals
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:62} {:>10} {:>10}", "GOAL", "FIGURE", "AT MOST")?;
        for goal in self.goals() {
            let met = if goal.figure <= goal.limit { "met" } else { "NOT MET" };
            writeln!(
                f,
                "{:62} {:>7.2} {:<2} {:>7.2} {:<2} {met}",
                goal.what, goal.figure, goal.unit, goal.limit, goal.unit
            )?;
        }
        let spread = |s: &Summary| format!("{:.1} … {:.1}", s.p10, s.p90);
        writeln!(
            f,
            "\n{:32} {:6} {:>8} {:>10} {:>18} {:>12}",
            "PROGRAM, ns per packet", "", "OWNERS", "MEDIAN", "P10 … P90", "ABOVE EMPTY"
        )?;
        for row in &self.programs {
            writeln!(
                f,
                "{:32} {:6} {:>8} {:>10.1} {:>18} {:>12.1}",
                row.path,
                row.family,
                row.owners,
                row.ns.median,
                spread(&row.ns),
                row.above_empty
            )?;
        }
        writeln!(f, "\n{:32} {:>8} {:>10} {:>18} {:>10}", "ROUND TRIP, µs", "SOURCES", "MEDIAN", "P10 … P90", "P99")?;
        for row in &self.trips {
            writeln!(
                f,
                "{:32} {:>8} {:>10.2} {:>18} {:>10.2}",
                row.way.name(),
                row.sources,
                row.p50_us.median,
                spread(&row.p50_us),
                row.p99_us.median
            )?;
        }
        Ok(())
    }
}
