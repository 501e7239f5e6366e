//! Asking the loaded programs what they would do: BPF_PROG_TEST_RUN on a made packet.

use std::time::Duration;

use aya::programs::{TestRun as _, TestRunOptions};
use ebpf::{
    abi::{TRACE_REQUEST, TraceAnswer},
    verdict::Counter,
};

use super::{Dataplane, DataplaneError, Result};
use crate::{hook::Direction, inventory::Ifindex, tables::Slot};

/// A packet to ask about.
#[derive(Debug, Clone)]
pub struct Probe<'a> {
    pub link: Ifindex,
    pub direction: Direction,
    /// From the Ethernet header on; at least 15 bytes.
    pub frame: &'a [u8],
}

/// What the program would do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Explanation {
    pub verdict: Counter,
    /// Rule of design section 5.
    pub rule: u8,
    pub reason: Option<Counter>,
    /// The NIC it would leave by, if another than the hook's.
    pub slot: Option<Slot>,
    /// Next hop words as [`ebpf::steer::NextHop::address`].
    pub hop: [u32; 4],
}

/// Size of `struct __sk_buff` as far as it is passed, and the places of its fields in 32-bit words
/// (include/uapi/linux/bpf.h).
const CONTEXT_WORDS: usize = 48;
const WORD_INGRESS_IFINDEX: usize = 9;
const WORD_IFINDEX: usize = 10;
const WORD_CB: usize = 12;

/// What a packet's run left behind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Run {
    /// The TC code: -1 next, 2 drop, 7 redirect.
    pub code: i32,
    /// The packet after the program.
    pub frame: Vec<u8>,
    /// Average time of one run.
    pub duration: Duration,
}

impl Dataplane {
    /// Runs the pinned program of a direction once on a packet, counting nothing; None if the program does not manage
    /// that NIC.
    pub fn explain(&self, probe: &Probe<'_>) -> Result<Option<Explanation>> {
        let (_, context) = self.test_run(probe, 1, TRACE_REQUEST)?;
        let cb = [WORD_CB, WORD_CB + 1, WORD_CB + 2, WORD_CB + 3, WORD_CB + 4].map(|place| context[place]);
        Ok(TraceAnswer::from_cb(cb).and_then(|answer| {
            Some(Explanation {
                verdict: Counter::from_index(u32::from(answer.verdict))?,
                rule: answer.rule,
                reason: Counter::from_index(u32::from(answer.reason)),
                slot: (answer.slot != u8::MAX).then_some(Slot::from(answer.slot)),
                hop: answer.hop,
            })
        }))
    }

    /// Runs the pinned program of a direction on a packet as on a real one, with everything it counts; for tests and
    /// measurements.
    pub fn run(&self, probe: &Probe<'_>, repeat: u32) -> Result<Run> {
        self.test_run(probe, repeat, [0; 2]).map(|(run, _)| run)
    }

    /// Answers the run and the context after it.
    fn test_run(&self, probe: &Probe<'_>, repeat: u32, request: [u32; 2]) -> Result<(Run, [u32; CONTEXT_WORDS])> {
        let program = self.program(probe.direction)?;
        let mut context = [0_u32; CONTEXT_WORDS];
        context[WORD_IFINDEX] = probe.link.0;
        if probe.direction == Direction::Ingress {
            context[WORD_INGRESS_IFINDEX] = probe.link.0;
        }
        context[WORD_CB..WORD_CB + 2].copy_from_slice(&request);
        let input: Vec<u8> = context.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let mut output = vec![0_u8; input.len()];
        let mut frame = vec![0_u8; probe.frame.len() + 256];
        let options = TestRunOptions {
            data_in: Some(probe.frame),
            data_out: Some(&mut frame),
            ctx_in: Some(&input),
            ctx_out: Some(&mut output),
            repeat,
            ..TestRunOptions::default()
        };
        let result = program
            .test_run(options)
            .map_err(|e| DataplaneError::Verifier { program: probe.direction.name(), source: Box::new(e) })?;
        frame.truncate(result.data_size_out as usize);
        for (word, bytes) in context.iter_mut().zip(output.as_chunks().0) {
            *word = u32::from_ne_bytes(*bytes);
        }
        let run = Run { code: result.return_value.cast_signed(), frame, duration: result.duration };
        Ok((run, context))
    }
}
