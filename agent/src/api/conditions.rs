//! Conditions after the Kubernetes API conventions.

use k8s_openapi::{
    apimachinery::pkg::apis::meta::v1::{Condition, Time},
    jiff::Timestamp,
};

use super::Reason;

/// The types of condition a node reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ConditionType {
    Ready,
    Applied,
    Degraded,
    RolledBack,
    Ambiguous,
    Conflict,
    UncoveredDevice,
    ContestedBy,
}

impl ConditionType {
    /// The `type` field's text.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ready => "Ready",
            Self::Applied => "Applied",
            Self::Degraded => "Degraded",
            Self::RolledBack => "RolledBack",
            Self::Ambiguous => "Ambiguous",
            Self::Conflict => "Conflict",
            Self::UncoveredDevice => "UncoveredDevice",
            Self::ContestedBy => "ContestedBy",
        }
    }
}

/// Whether a condition holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ConditionStatus {
    True,
    False,
    Unknown,
}

impl ConditionStatus {
    /// The `status` field's text.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        }
    }
}

/// A condition as found now, before it is compared with the one on record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    pub condition: ConditionType,
    pub status: ConditionStatus,
    pub reason: Reason,
    pub message: String,
    /// metadata.generation of the spec it was found for; None without an API server.
    pub observed_generation: Option<i64>,
}

/// What [`set_condition`] did to the list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Change {
    /// The same condition was there already: nothing to write.
    Unchanged,
    /// Reason, message or generation changed; the transition time stays.
    Updated,
    /// The condition is new or its status flipped: the transition time is now.
    Transitioned,
}

/// Puts `found` into `conditions`, one entry per type, keeping `lastTransitionTime` unless the status flips.
pub fn set_condition(conditions: &mut Vec<Condition>, found: Finding, now: Timestamp) -> Change {
    let new = Condition {
        type_: found.condition.as_str().to_owned(),
        status: found.status.as_str().to_owned(),
        reason: found.reason.to_string(),
        message: found.message,
        observed_generation: found.observed_generation,
        last_transition_time: Time(now),
    };
    let Some(old) = conditions.iter_mut().find(|c| c.type_ == new.type_) else {
        conditions.push(new);
        return Change::Transitioned;
    };
    if old.status != new.status {
        *old = new;
        return Change::Transitioned;
    }
    let new = Condition { last_transition_time: old.last_transition_time.clone(), ..new };
    if *old == new {
        return Change::Unchanged;
    }
    *old = new;
    Change::Updated
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ready(status: ConditionStatus, message: &str) -> Finding {
        Finding {
            condition: ConditionType::Ready,
            status,
            reason: Reason::AsExpected,
            message: message.to_owned(),
            observed_generation: Some(3),
        }
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn transition_time_stays_while_the_status_stays() {
        let mut conditions = vec![];
        assert_eq!(set_condition(&mut conditions, ready(ConditionStatus::True, "a"), at(1)), Change::Transitioned);
        assert_eq!(set_condition(&mut conditions, ready(ConditionStatus::True, "a"), at(2)), Change::Unchanged);
        assert_eq!(set_condition(&mut conditions, ready(ConditionStatus::True, "b"), at(3)), Change::Updated);
        assert_eq!(conditions.len(), 1);
        assert_eq!(conditions[0].last_transition_time, Time(at(1)));
        assert_eq!(conditions[0].message, "b");
    }

    #[test]
    fn transition_time_moves_when_the_status_flips() {
        let mut conditions = vec![];
        let _ = set_condition(&mut conditions, ready(ConditionStatus::True, "a"), at(1));
        assert_eq!(set_condition(&mut conditions, ready(ConditionStatus::False, "a"), at(5)), Change::Transitioned);
        assert_eq!(conditions[0].last_transition_time, Time(at(5)));
    }

    #[test]
    fn other_types_are_left_alone() {
        let mut conditions = vec![];
        let _ = set_condition(&mut conditions, ready(ConditionStatus::True, "a"), at(1));
        let conflict = Finding { condition: ConditionType::Conflict, ..ready(ConditionStatus::False, "") };
        assert_eq!(set_condition(&mut conditions, conflict, at(2)), Change::Transitioned);
        assert_eq!(conditions.iter().map(|c| c.type_.as_str()).collect::<Vec<_>>(), ["Ready", "Conflict"]);
    }
}
