//! How long to wait before trying or repairing again. Time is an argument.

use std::time::Duration;

/// Doubles from try to try up to a limit; a quiet period starts over.
#[derive(Debug, Clone)]
pub struct Backoff {
    first: Duration,
    limit: Duration,
    /// Tries in a row.
    tries: u32,
    /// When the last try was, as time since any fixed moment.
    last: Option<Duration>,
}

impl Backoff {
    /// `first` is the wait after the first try.
    pub const fn new(first: Duration, limit: Duration) -> Self {
        Self { first, limit, tries: 0, last: None }
    }

    /// Whether a try is due at `now`.
    pub fn is_due(&self, now: Duration) -> bool {
        self.last.is_none_or(|last| now >= last + self.wait())
    }

    /// Records a try at `now`. One long after the wait is over counts as the first of a new row.
    pub fn tried(&mut self, now: Duration) {
        let quiet = self.last.is_none_or(|last| now >= last + self.wait() * 2 + self.first);
        self.tries = if quiet { 1 } else { self.tries.saturating_add(1) };
        self.last = Some(now);
    }

    /// Whether the last try is at least `quiet` ago.
    pub fn is_quiet(&self, now: Duration, quiet: Duration) -> bool {
        self.last.is_none_or(|last| now >= last + quiet)
    }

    /// Forgets all tries.
    pub fn reset(&mut self) {
        self.tries = 0;
        self.last = None;
    }

    /// Tries in a row.
    pub fn tries(&self) -> u32 {
        self.tries
    }

    fn wait(&self) -> Duration {
        match self.tries {
            0 => Duration::ZERO,
            n => self.first.saturating_mul(1 << (n - 1).min(16)).min(self.limit),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn waits_double_up_to_the_limit_and_a_quiet_period_starts_over() {
        let mut backoff = Backoff::new(s(1), s(8));
        assert!(backoff.is_due(s(0)));
        let mut now = s(0);
        for wait in [1, 2, 4, 8, 8, 8] {
            backoff.tried(now);
            assert!(!backoff.is_due(now + s(wait) - Duration::from_millis(1)));
            assert!(backoff.is_due(now + s(wait)));
            now += s(wait);
        }
        now += s(100);
        backoff.tried(now);
        assert_eq!(backoff.tries(), 1);
        backoff.reset();
        assert!(backoff.is_due(now));
    }
}
