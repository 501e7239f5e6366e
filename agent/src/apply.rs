//! Carries out a plan step by step, and takes it back in reverse if a step fails that the others depend on.

use std::error::Error;

use crate::plan::{Action, OnFailure, Step};

/// The outside world as far as a plan changes it.
pub trait Effects {
    /// Carries out one action; done already counts as success.
    fn perform(&mut self, action: &Action) -> impl Future<Output = Result<(), StepError>>;
}

/// A failed step, with everything its cause had to say.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct StepError(pub Box<dyn Error + Send + Sync>);

/// A step that failed.
#[derive(Debug)]
pub struct Failure {
    pub step: Step,
    pub error: StepError,
}

/// How a plan ended.
#[derive(Debug)]
#[must_use]
pub struct Outcome {
    pub done: Vec<Step>,
    /// Steps that failed and were passed over.
    pub failed: Vec<Failure>,
    /// The step that stopped the plan, if one did; `done` is empty then.
    pub stopped: Option<Failure>,
    /// Steps that could not be taken back.
    pub stuck: Vec<Failure>,
}

impl Outcome {
    /// Whether everything was done.
    pub fn is_complete(&self) -> bool {
        self.failed.is_empty() && self.stopped.is_none()
    }
}

/// Carries out the steps in order.
pub async fn apply(steps: Vec<Step>, effects: &mut impl Effects) -> Outcome {
    let mut outcome = Outcome { done: Vec::new(), failed: Vec::new(), stopped: None, stuck: Vec::new() };
    for step in steps {
        match effects.perform(&step.action).await {
            Ok(()) => outcome.done.push(step),
            Err(error) => match step.action.on_failure() {
                OnFailure::Continue => outcome.failed.push(Failure { step, error }),
                OnFailure::Undo => {
                    outcome.stopped = Some(Failure { step, error });
                    break;
                }
            },
        }
    }
    if outcome.stopped.is_some() {
        for step in std::mem::take(&mut outcome.done).into_iter().rev() {
            if let Some(action) = step.action.undo() {
                let undo = Step { action, why: format!("undo: {}", step.why) };
                if let Err(error) = effects.perform(&undo.action).await {
                    outcome.stuck.push(Failure { step: undo, error });
                }
            }
        }
    }
    outcome
}

#[cfg(test)]
mod tests;
