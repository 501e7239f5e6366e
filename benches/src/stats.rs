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
    let at = |share: f64| {
        let place = share * sorted.len().saturating_sub(1) as f64;
        sorted.get(place.round() as usize).copied().unwrap_or_default()
    };
    Summary { median: at(0.5), p10: at(0.1), p90: at(0.9), samples: sorted.len() }
}
