// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Fault injection: the faults that `GDRFAB_FAULT` asks of a provider, so that programs can test their own recovery on the
//! library that they ship with. `docs/faults.md` describes it to users.
//!
//! A provider calls [`Plan::of`] once for each endpoint and domain, and gets `None` unless faults are wanted. With a plan it
//! takes no fast path, so that fast paths need not ask.

use crate::config;
use crate::config::faults::{Effect, Fault, Step};
use crate::error::{Code, Error, Result, errno};
use crate::mr::Paths;
use crate::prov::flags;
use crate::sys::time;
use std::sync::atomic::{AtomicU64, Ordering};

pub use crate::config::faults::FaultOp;

/// The number of kinds of operations.
const OPS: usize = 4;

/// The fate of an operation that was accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Go,
    /// The operation starts no sooner than this time (of [`time::now_ns`]), and operations posted behind it start after it.
    Hold(u64),
    /// The operation ends the connection, as if the peer had died: the operation and everything outstanding fail with
    /// [`Plan::gone`].
    Lose,
}

impl From<crate::prov::op::Dir> for FaultOp {
    fn from(dir: crate::prov::op::Dir) -> FaultOp {
        match dir {
            crate::prov::op::Dir::Write => FaultOp::Write,
            crate::prov::op::Dir::Read => FaultOp::Read,
        }
    }
}

impl FaultOp {
    /// The kind of an operation with these completion flags.
    pub fn of(kind: u64) -> FaultOp {
        match kind {
            k if k & flags::SEND != 0 => FaultOp::Send,
            k if k & flags::READ != 0 => FaultOp::Read,
            _ => FaultOp::Write,
        }
    }
}

/// The faults of one endpoint or domain.
#[derive(Debug)]
pub struct Plan {
    faults: Vec<Fault>,
    /// The operations posted so far, by kind.
    posted: [u64; OPS],
    /// The registrations so far. The counter is atomic because registrations may come from several threads, and no lock
    /// serializes them.
    registered: AtomicU64,
}

impl Plan {
    /// The faults that the environment wants of `provider`; usually none.
    pub fn of(provider: &str) -> Option<Box<Plan>> {
        Plan::among(&config::get().faults, provider)
    }

    /// The faults that the environment wants of operations over any of these providers.
    pub fn of_operations(providers: &[&str]) -> Option<Box<Plan>> {
        let all = config::get().faults.iter().filter(|f| matches!(f.effect, Effect::Delay { .. } | Effect::Drop { .. }));
        Plan::made(all.filter(|f| f.provider.is_none_or(|p| providers.contains(&p))).cloned().collect())
    }

    /// The faults of these words, whatever the environment says.
    #[cfg(test)]
    pub fn of_words(words: &str) -> Option<Box<Plan>> {
        Plan::made(config::faults::parse(words).0)
    }

    fn among(faults: &[Fault], provider: &str) -> Option<Box<Plan>> {
        Plan::made(faults.iter().filter(|f| f.provider.is_none_or(|p| p == provider)).cloned().collect())
    }

    fn made(faults: Vec<Fault>) -> Option<Box<Plan>> {
        (!faults.is_empty()).then(|| Box::new(Plan { faults, posted: [0; OPS], registered: AtomicU64::new(0) }))
    }

    /// Counts an operation of a connected endpoint, and decides on its fate. The caller asks after all reasons to
    /// refuse the operation, because an operation that the program has to post again must not be counted.
    pub fn post(&mut self, op: FaultOp) -> Verdict {
        self.posted[op as usize] += 1;
        let (own, all) = (self.posted[op as usize], self.posted.iter().sum::<u64>());
        let lost = |f: &Fault| match &f.effect {
            Effect::Drop { nth, op: None, once } => *nth == all && claim(once),
            Effect::Drop { nth, op: Some(of), once } => *of == op && *nth == own && claim(once),
            _ => false,
        };
        // The loop asks every fault and does not stop at the first, because asking marks a fault that happens once as
        // done.
        if self.faults.iter().filter(|f| lost(f)).count() > 0 {
            return Verdict::Lose;
        }
        self.early(op)
    }

    /// As `post`, for a receive that is posted before the endpoint is connected. Such a receive can be delayed, but is
    /// not counted, and there is no connection to lose yet.
    pub fn early(&self, op: FaultOp) -> Verdict {
        let delays = self.faults.iter().filter_map(|f| match &f.effect {
            Effect::Delay { ns, op: of } if of.is_none_or(|o| o == op) => Some(*ns),
            _ => None,
        });
        delays.max().map_or(Verdict::Go, |ns| Verdict::Hold(time::deadline(ns)))
    }

    /// The error of a connection that a fault has ended.
    pub fn gone() -> Error {
        Error::coded(errno::ECONNRESET, Code::PeerGone, "the peer closed the connection or died (fault injected by GDRFAB_FAULT=drop)")
    }

    /// Counts a registration, and returns the paths that faults refuse to it. `Err`: faults refuse the registration
    /// altogether.
    pub fn register(&self) -> Result<Paths> {
        // Relaxed: it is enough that each registration gets a number of its own.
        let this = self.registered.fetch_add(1, Ordering::Relaxed) + 1;
        let mut refused = Paths::empty();
        for fault in &self.faults {
            match fault.effect {
                Effect::Refuse { nth: Some(n), .. } if n != this => {}
                Effect::Refuse { step: Step::Path(bit), .. } => refused |= Paths::from_bits_truncate(bit),
                Effect::Refuse { step: Step::Whole, .. } => {
                    return Err(Error::fixed(errno::EIO, "mr: fault injected by GDRFAB_FAULT=refuse=register"));
                }
                _ => {}
            }
        }
        Ok(refused)
    }

    /// The number of segments after which rail `number` is lost; 0: never.
    pub fn rail(&self, number: usize) -> u64 {
        let after = |f: &Fault| match f.effect {
            Effect::Rail { segments, number: of } if of.is_none_or(|n| n == number) => Some(segments),
            _ => None,
        };
        self.faults.iter().filter_map(after).min().unwrap_or(0)
    }

    /// As `rail`, for the first rail, which only a fault that names rail 0 ends.
    pub fn first_rail(&self) -> u64 {
        let after = |f: &Fault| if let Effect::Rail { segments, number: Some(0) } = f.effect { Some(segments) } else { None };
        self.faults.iter().filter_map(after).min().unwrap_or(0)
    }

    /// True if there are faults of operations or registrations, and not of rails only.
    pub fn concerns_operations(&self) -> bool {
        self.faults.iter().any(|f| !matches!(f.effect, Effect::Rail { .. }))
    }

    /// The error of a rail that a fault has ended.
    pub fn rail_gone() -> Error {
        Error::fixed(errno::ECONNRESET, "fault injected by GDRFAB_FAULT=rail")
    }

    /// The most bytes that one read or write of a socket may move, or that a fragment may have.
    pub fn short(&self) -> Option<usize> {
        self.faults.iter().filter_map(|f| if let Effect::Short(n) = f.effect { Some(n) } else { None }).min()
    }
}

/// The error of a path that a fault refuses.
pub fn refusal(path: Paths) -> Error {
    Error::new(errno::EIO, format!("fault injected by GDRFAB_FAULT=refuse={}", path.words()))
}

/// True if a fault is still to happen; then marks a fault that happens once as done.
fn claim(once: &Option<std::sync::Arc<std::sync::atomic::AtomicBool>>) -> bool {
    // Relaxed: no other memory depends on it.
    once.as_ref().is_none_or(|done| !done.swap(true, Ordering::Relaxed))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::faults::parse;

    fn plan(text: &str) -> Box<Plan> {
        let (faults, wrong) = parse(text);
        assert!(wrong.is_empty(), "{wrong:?}");
        Plan::among(&faults, "shm").expect("a plan")
    }

    #[test]
    fn there_is_no_plan_unless_faults_of_the_provider_are_wanted() {
        let faults = parse("tcp/drop=5,verbs/short=3").0;
        assert!(Plan::among(&[], "shm").is_none() && Plan::among(&faults, "shm").is_none());
        assert_eq!(Plan::among(&faults, "tcp").expect("a plan").short(), None);
        assert_eq!(Plan::among(&faults, "verbs").expect("a plan").short(), Some(3));
    }

    #[test]
    fn the_nth_operation_is_lost_and_no_other() {
        let mut p = plan("drop=3");
        let ops = [FaultOp::Write, FaultOp::Recv, FaultOp::Send, FaultOp::Read, FaultOp::Write];
        assert_eq!(ops.map(|op| p.post(op) == Verdict::Lose), [false, false, true, false, false]);
        let mut p = plan("drop=2:send,drop=1:read");
        let ops = [FaultOp::Send, FaultOp::Write, FaultOp::Send, FaultOp::Read, FaultOp::Send];
        assert_eq!(ops.map(|op| p.post(op) == Verdict::Lose), [false, false, true, true, false]);
    }

    #[test]
    fn a_fault_that_happens_once_happens_on_one_endpoint() {
        let faults = parse("drop=1:once").0;
        let mut first = Plan::among(&faults, "shm").expect("a plan");
        let mut second = Plan::among(&faults, "shm").expect("a plan");
        assert_eq!(first.post(FaultOp::Send), Verdict::Lose);
        assert_eq!((second.post(FaultOp::Send), second.post(FaultOp::Send)), (Verdict::Go, Verdict::Go));
    }

    #[test]
    fn the_longest_delay_of_an_operation_counts() {
        let mut p = plan("delay=100,delay=5000:send,drop=9");
        let now = time::now_ns();
        let held = |v: Verdict| if let Verdict::Hold(until) = v { until.saturating_sub(now) } else { 0 };
        assert!((100_000..5_000_000).contains(&held(p.post(FaultOp::Write))));
        assert!(held(p.post(FaultOp::Send)) >= 5_000_000);
        assert!(held(p.early(FaultOp::Recv)) >= 100_000);
        assert_eq!(plan("delay=100:send").post(FaultOp::Recv), Verdict::Go);
    }

    #[test]
    fn a_registration_is_refused_the_steps_it_was_told() {
        let p = plan("refuse=cma:2,refuse=direct");
        assert_eq!(p.register().expect("first"), Paths::DIRECT);
        assert_eq!(p.register().expect("second"), Paths::DIRECT | Paths::CMA);
        assert_eq!(p.register().expect("third"), Paths::DIRECT);
        let p = plan("refuse=register:2");
        assert!(p.register().is_ok());
        assert!(p.register().is_err_and(|e| e.errno == errno::EIO && e.words.contains("GDRFAB_FAULT=refuse=register")));
        assert!(p.register().is_ok());
        assert!(refusal(Paths::PEER_MEM).words.contains("refuse=peer-mem"));
    }

    #[test]
    fn steps_are_called_as_paths_are() {
        for path in Paths::ALL {
            assert_eq!(plan(&format!("refuse={}", path.words())).register().expect("one step"), path);
        }
    }

    #[test]
    fn the_shortest_of_several_counts() {
        assert_eq!(plan("short=100,short=7").short(), Some(7));
        assert_eq!(plan("drop=1").short(), None);
        let p = plan("rail=9,rail=4:1,drop=1");
        assert_eq!((p.rail(0), p.rail(1), plan("drop=1").rail(0)), (9, 4, 0));
    }
}
