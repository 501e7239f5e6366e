//! Medians and spread: what is robust on a machine that others use.

use serde::Serialize;

/// A row of samples in one unit.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
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

/// What `compare` makes of the samples of each round: what hits a whole round drops out.
fn in_each_round(left: &[f64], right: &[f64], compare: impl Fn(f64, f64) -> f64) -> Vec<f64> {
    left.iter().zip(right).map(|(left, right)| compare(*left, *right)).collect()
}

/// Ratio in each round.
pub(crate) fn ratio(left: &[f64], right: &[f64]) -> Summary {
    summarise(&in_each_round(left, right, |left, right| left / right))
}

/// Difference in each round.
pub(crate) fn difference(left: &[f64], right: &[f64]) -> Vec<f64> {
    in_each_round(left, right, |left, right| left - right)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_outlier_moves_neither_median_nor_tenth_percentile() {
        let mut samples: Vec<f64> = (1..=21).map(f64::from).collect();
        let calm = summarise(&samples);
        assert_eq!((calm.median, calm.p10, calm.p90, calm.samples), (11.0, 3.0, 19.0, 21));
        samples[20] = 1e9;
        assert_eq!(summarise(&samples), calm);
    }

    #[test]
    fn what_slows_a_whole_round_down_drops_out_of_a_paired_ratio() {
        let (left, right) = ([2.0, 20.0, 2.0], [1.0, 10.0, 1.0]);
        let ratio = ratio(&left, &right);
        assert_eq!((ratio.median, ratio.p10, ratio.p90), (2.0, 2.0, 2.0));
    }

    #[test]
    fn no_samples_are_zero() {
        assert_eq!(summarise(&[]).median, 0.0);
    }
}
