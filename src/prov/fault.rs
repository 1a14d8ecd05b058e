// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Faults on demand: what `GDRFAB_FAULT` asks of a provider, so that programs can test their own recovery on
//! the library that they ship with. `docs/faults.md` is for them.
//!
//! A provider asks [`Plan::of`] once for each endpoint and domain, and gets `None` unless faults are wanted.
//! With a plan it takes no fast path, so that those need not ask.

use crate::config;
use crate::config::faults::{Fault, Step, What};
use crate::error::{Code, Error, Result, errno};
use crate::mr::Paths;
use crate::prov::flags;
use crate::sys::time;
use std::sync::atomic::{AtomicU64, Ordering};

pub use crate::config::faults::Op;

/// Kinds of operations.
const OPS: usize = 4;

/// What becomes of an operation that was accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Go,
    /// It starts no sooner than this (of [`time::now_ns`]), and what is posted behind it not before it.
    Hold(u64),
    /// It ends the connection, as if the peer had died: it fails with [`Plan::gone`], and so does
    /// everything outstanding.
    Lose,
}

impl From<crate::prov::op::Dir> for Op {
    fn from(dir: crate::prov::op::Dir) -> Op {
        match dir {
            crate::prov::op::Dir::Write => Op::Write,
            crate::prov::op::Dir::Read => Op::Read,
        }
    }
}

impl Op {
    /// Of an operation with these completion flags.
    pub fn of(kind: u64) -> Op {
        match kind {
            k if k & flags::SEND != 0 => Op::Send,
            k if k & flags::READ != 0 => Op::Read,
            _ => Op::Write,
        }
    }
}

/// The faults of one endpoint or domain.
#[derive(Debug)]
pub struct Plan {
    faults: Vec<Fault>,
    /// Operations so far, by kind.
    posted: [u64; OPS],
    /// Registrations so far; they may come from several threads, and need no lock otherwise.
    registered: AtomicU64,
}

impl Plan {
    /// What is wanted of `provider`; usually nothing.
    pub fn of(provider: &str) -> Option<Box<Plan>> {
        Plan::among(&config::get().faults, provider)
    }

    /// What is wanted of operations over any of these providers.
    pub fn of_operations(providers: &[&str]) -> Option<Box<Plan>> {
        let all = config::get().faults.iter().filter(|f| matches!(f.what, What::Delay { .. } | What::Drop { .. }));
        Plan::made(all.filter(|f| f.provider.is_none_or(|p| providers.contains(&p))).cloned().collect())
    }

    /// What is wanted by these words, and not by the environment's.
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

    /// An operation of a connected endpoint was accepted: nothing but the fault keeps it from starting now. One
    /// that the caller is told to post again is not counted, so ask last.
    pub fn post(&mut self, op: Op) -> Verdict {
        self.posted[op as usize] += 1;
        let (own, all) = (self.posted[op as usize], self.posted.iter().sum::<u64>());
        let lost = |f: &Fault| match &f.what {
            What::Drop { nth, op: None, once } => *nth == all && claim(once),
            What::Drop { nth, op: Some(of), once } => *of == op && *nth == own && claim(once),
            _ => false,
        };
        // Each is asked, since one that happens once is spent by being asked.
        if self.faults.iter().filter(|f| lost(f)).count() > 0 {
            return Verdict::Lose;
        }
        self.early(op)
    }

    /// As `post` for a receive that was posted before the endpoint is connected: it can be late, and there is
    /// nothing to lose or to count yet.
    pub fn early(&self, op: Op) -> Verdict {
        let delays = self.faults.iter().filter_map(|f| match &f.what {
            What::Delay { ns, op: of } if of.is_none_or(|o| o == op) => Some(*ns),
            _ => None,
        });
        delays.max().map_or(Verdict::Go, |ns| Verdict::Hold(time::deadline(ns)))
    }

    /// Why the connection is over.
    pub fn gone() -> Error {
        Error::coded(errno::ECONNRESET, Code::PeerGone, "the peer closed the connection or died (so GDRFAB_FAULT=drop has it)")
    }

    /// Another registration begins: the steps that it is refused; `Err`: all of it.
    pub fn register(&self) -> Result<Paths> {
        // Relaxed: a number for each is all that is wanted.
        let this = self.registered.fetch_add(1, Ordering::Relaxed) + 1;
        let mut refused = Paths::empty();
        for fault in &self.faults {
            match fault.what {
                What::Refuse { nth: Some(n), .. } if n != this => {}
                What::Refuse { step: Step::Path(bit), .. } => refused |= Paths::from_bits_truncate(bit),
                What::Refuse { step: Step::Whole, .. } => {
                    return Err(Error::fixed(errno::EIO, "mr: refused on demand, GDRFAB_FAULT=refuse=register"));
                }
                _ => {}
            }
        }
        Ok(refused)
    }

    /// After how many segments the rail of this number is lost; 0: never.
    pub fn rail(&self, number: usize) -> u64 {
        let after = |f: &Fault| match f.what {
            What::Rail { segments, number: of } if of.is_none_or(|n| n == number) => Some(segments),
            _ => None,
        };
        self.faults.iter().filter_map(after).min().unwrap_or(0)
    }

    /// The same of a first rail that is lost only if it is named.
    pub fn first_rail(&self) -> u64 {
        let after = |f: &Fault| if let What::Rail { segments, number: Some(0) } = f.what { Some(segments) } else { None };
        self.faults.iter().filter_map(after).min().unwrap_or(0)
    }

    /// Whether operations or registrations are concerned, and not rails alone.
    pub fn concerns_operations(&self) -> bool {
        self.faults.iter().any(|f| !matches!(f.what, What::Rail { .. }))
    }

    /// Why a rail is.
    pub fn rail_gone() -> Error {
        Error::fixed(errno::ECONNRESET, "lost on demand, GDRFAB_FAULT=rail")
    }

    /// The most bytes that a read or write of a socket may move at once, or a fragment may have.
    pub fn short(&self) -> Option<usize> {
        self.faults.iter().filter_map(|f| if let What::Short(n) = f.what { Some(n) } else { None }).min()
    }
}

/// What the refusal of a step says.
pub fn refusal(path: Paths) -> Error {
    Error::new(errno::EIO, format!("refused on demand, GDRFAB_FAULT=refuse={}", path.words()))
}

/// Whether this fault still is to happen.
fn claim(once: &Option<std::sync::Arc<std::sync::atomic::AtomicBool>>) -> bool {
    // Relaxed: nothing else hangs on it.
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
    fn nobody_has_a_plan_unless_faults_are_wanted_of_his_provider() {
        let faults = parse("tcp/drop=5,verbs/short=3").0;
        assert!(Plan::among(&[], "shm").is_none() && Plan::among(&faults, "shm").is_none());
        assert_eq!(Plan::among(&faults, "tcp").expect("a plan").short(), None);
        assert_eq!(Plan::among(&faults, "verbs").expect("a plan").short(), Some(3));
    }

    #[test]
    fn the_nth_operation_is_lost_and_no_other() {
        let mut p = plan("drop=3");
        let ops = [Op::Write, Op::Recv, Op::Send, Op::Read, Op::Write];
        assert_eq!(ops.map(|op| p.post(op) == Verdict::Lose), [false, false, true, false, false]);
        let mut p = plan("drop=2:send,drop=1:read");
        let ops = [Op::Send, Op::Write, Op::Send, Op::Read, Op::Send];
        assert_eq!(ops.map(|op| p.post(op) == Verdict::Lose), [false, false, true, true, false]);
    }

    #[test]
    fn what_happens_once_happens_on_one_endpoint() {
        let faults = parse("drop=1:once").0;
        let mut first = Plan::among(&faults, "shm").expect("a plan");
        let mut second = Plan::among(&faults, "shm").expect("a plan");
        assert_eq!(first.post(Op::Send), Verdict::Lose);
        assert_eq!((second.post(Op::Send), second.post(Op::Send)), (Verdict::Go, Verdict::Go));
    }

    #[test]
    fn the_longest_delay_of_an_operation_counts() {
        let mut p = plan("delay=100,delay=5000:send,drop=9");
        let now = time::now_ns();
        let held = |v: Verdict| if let Verdict::Hold(until) = v { until.saturating_sub(now) } else { 0 };
        assert!((100_000..5_000_000).contains(&held(p.post(Op::Write))));
        assert!(held(p.post(Op::Send)) >= 5_000_000);
        assert!(held(p.early(Op::Recv)) >= 100_000);
        assert_eq!(plan("delay=100:send").post(Op::Recv), Verdict::Go);
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
