// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The record of the ways of registering memory that were tried for a region, in order, and the reason of each refusal.
//! `mr_explain` shows this record.

use crate::error::{Code, Error, Result, errno};
use crate::mr::Paths;
use crate::prov::fault;
use crate::prov::verbs::limits::PATHS;

/// A way of registering memory, with its name for messages.
#[derive(Clone, Copy, Debug)]
pub struct RegistrationStep {
    pub path: Paths,
    pub what: &'static str,
}

/// The steps that were tried. All but the last one were refused. The list of refusals is empty for a usual region,
/// which takes the first step.
#[derive(Default, Debug)]
pub struct RegistrationRecord {
    refused: Vec<(RegistrationStep, Error)>,
    taken: Option<RegistrationStep>,
}

/// The step for a plain range of host memory.
pub const PINNED: RegistrationStep = RegistrationStep { path: Paths::NIC, what: "host pages pinned by the device (ibv_reg_mr)" };

/// The steps so far, and the paths on which further steps may be tried.
pub struct RegistrationSteps {
    pub allowed: Paths,
    /// Paths that fault injection refuses.
    refused: Paths,
    pub record: RegistrationRecord,
}

impl RegistrationSteps {
    pub fn new(allowed: Paths, refused: Paths) -> RegistrationSteps {
        RegistrationSteps { allowed, refused, record: RegistrationRecord::default() }
    }

    /// True if `attempt` would try a step on this path.
    pub fn permits(&self, path: Paths) -> bool {
        self.allowed.contains(path) && !self.refused.contains(path)
    }

    /// Tries a step if its path is allowed. `None`: the step was refused, and the reason is recorded.
    pub fn attempt<T>(&mut self, path: Paths, what: &'static str, step: impl FnOnce() -> Result<T>) -> Option<T> {
        let outcome = match self.allowed.contains(path) {
            true if self.refused.contains(path) => Err(fault::refusal(path)),
            true => step(),
            false => Err(Error::fixed(errno::EACCES, "ruled out by attr->require, attr->forbid or GDRFAB_PATHS")),
        };
        let step = RegistrationStep { path, what };
        match outcome {
            Ok(done) => {
                self.record.taken = Some(step);
                Some(done)
            }
            Err(e) => {
                self.record.refused.push((step, e));
                None
            }
        }
    }

    /// The error after all steps were refused, with the reason of each refusal.
    pub fn exhausted(&self) -> Error {
        let last = self.record.refused.iter().rev().map(|(_, e)| e).find(|e| e.errno != errno::EACCES);
        let number = last.map_or(errno::EOPNOTSUPP, |e| if e.errno == errno::EFAULT { errno::EOPNOTSUPP } else { e.errno });
        let words = self.record.words().map(|(_, words)| words).collect::<Vec<_>>().join("; ");
        Error::coded(number, Code::Path, format!("no permitted way to register this memory: {words}"))
    }
}

impl RegistrationRecord {
    /// The record of memory that took the first step.
    pub fn of(taken: RegistrationStep) -> RegistrationRecord {
        RegistrationRecord { refused: Vec::new(), taken: Some(taken) }
    }

    /// Pairs of path and text: "dma-buf: refused, errno 95: ...".
    fn words(&self) -> impl Iterator<Item = (Paths, String)> {
        let refused = self.refused.iter().map(|(s, e)| (s.path, format!("{}: refused, errno {}: {e}", s.what, e.errno)));
        refused.chain(self.taken.iter().map(|s| (s.path, format!("{}: taken", s.what))))
    }

    fn has(&self, path: Paths) -> bool {
        self.refused.iter().map(|(s, _)| s).chain(&self.taken).any(|s| s.path == path)
    }

    /// A line for each step that was tried, and for each path that was not tried.
    pub fn lines(&self) -> String {
        let tried = self.words().map(|(path, words)| format!("  {}: {words}\n", path.words()));
        let untried = Paths::ALL.into_iter().filter(|p| PATHS.contains(*p) && !self.has(*p));
        tried.chain(untried.map(|p| format!("  {}: not tried\n", p.words()))).collect()
    }
}
