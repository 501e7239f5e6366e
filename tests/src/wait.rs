//! Waiting for something to become true, with a deadline instead of a sleep.

use std::fmt::Debug;
use std::time::{Duration, Instant};

/// Pause between two looks.
const INTERVAL: Duration = Duration::from_millis(3);

/// What one look found: the value waited for, or the state that is not it yet.
pub trait Observation {
    /// What is waited for.
    type Value;

    /// The value, or a description of what was seen instead.
    ///
    /// # Errors
    /// The state seen, for the message of a wait that fails.
    fn settle(self) -> Result<Self::Value, String>;
}

impl<T> Observation for Option<T> {
    type Value = T;

    fn settle(self) -> Result<T, String> {
        self.ok_or_else(|| "nothing".to_owned())
    }
}

impl<T, E: Debug> Observation for Result<T, E> {
    type Value = T;

    fn settle(self) -> Result<T, String> {
        self.map_err(|state| format!("{state:?}"))
    }
}

/// Looks every few milliseconds until `look` finds its value (`Some` or `Ok`), and returns it.
///
/// Panics after `deadline` with `what` and the state seen last: the `Err` of the last look.
pub fn eventually<O: Observation>(deadline: Duration, what: &str, mut look: impl FnMut() -> O) -> O::Value {
    let start = Instant::now();
    loop {
        match look().settle() {
            Ok(value) => return value,
            Err(seen) if start.elapsed() >= deadline => panic!("{what}: not within {deadline:?}; last seen: {seen}"),
            Err(_) => std::thread::sleep(INTERVAL),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn returns_the_first_value_found() {
        let mut looks = 0;
        let value = eventually(Duration::from_secs(5), "third look", || {
            looks += 1;
            (looks == 3).then_some(looks)
        });
        assert_eq!(value, 3);
    }

    #[test]
    #[should_panic(expected = "a miracle: not within 10ms; last seen: 7")]
    fn tells_the_last_state_when_it_gives_up() {
        eventually(Duration::from_millis(10), "a miracle", || Err::<(), _>(7));
    }
}
