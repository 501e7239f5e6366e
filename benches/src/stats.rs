//! Medians and spread: what is robust on a machine that others use.

use serde::Serialize;

/// A row of samples in one unit.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct Summary {
    pub(crate) median: f64,
    /// 10th percentile
    pub(crate) p10: f64,
    /// 90th percentile
    pub(crate) p90: f64,
    pub(crate) samples: usize,
}

/// Summary of samples; all zero if there are none.
pub(crate) fn summarise(samples: &[f64]) -> Summary {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = |percent: usize| {
        let place = sorted.len().saturating_sub(1) * percent / 100;
        sorted.get(place).copied().unwrap_or_default()
    };
    Summary { median: at(50), p10: at(10), p90: at(90), samples: sorted.len() }
}
