// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The objects that the API speaks of. They hold each other alive, answer -EBUSY when one is closed
//! that others still use, and hand data-path calls to the provider by enum.

mod cntr;
mod cq;
mod descriptor;
mod domain;
mod endpoint;
mod eq;
pub mod hmem;
mod info;
mod pep;
mod requests;
mod wait;

pub use cntr::{Cntr, Reached};
pub use cq::{Cq, CqFormat, Gate};
pub use domain::{Domain, Fabric, Mr};
pub use endpoint::{Armed, Effort, Endpoint, PathAnswer, Quick, Stats};
pub use eq::Eq;
pub use info::{
    ADDR_STR, EP_MSG, Info, Near, Nic, PROGRESS_AUTO, PROGRESS_MANUAL, Secret, THREAD_DOMAIN, THREAD_SAFE, getinfo, left_out, nic,
};
pub use pep::Pep;
pub use requests::RequestId;

use crate::error::{Error, Result, errno};
use crate::sys::process;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Counts the objects that use another one.
#[derive(Default)]
pub(crate) struct Users(AtomicUsize);

impl Users {
    fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn remove(&self) {
        self.0.fetch_sub(1, Ordering::Release);
    }

    fn none_or_busy(&self, what: &str) -> Result<()> {
        match self.0.load(Ordering::Acquire) {
            0 => Ok(()),
            n => Err(Error::new(errno::EBUSY, format!("{what}: {n} object(s) opened from it are still open"))),
        }
    }
}

/// The pointer that a caller opened an object with, kept as it is and handed back.
#[derive(Default)]
pub struct Context(AtomicUsize);

impl Context {
    pub fn set(&self, context: usize) {
        self.0.store(context, Ordering::Relaxed);
    }

    pub fn get(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

/// Handles belong to the process that opened them: rings and keys cannot have two owners.
#[derive(Clone, Copy)]
pub(crate) struct Owner {
    word: &'static AtomicU64,
    id: u64,
}

impl Owner {
    fn here() -> Owner {
        let word = process::instance();
        Owner { word, id: word.load(Ordering::Relaxed) }
    }

    #[inline]
    fn check(self) -> Result<()> {
        if self.is_here() { Ok(()) } else { Err(self.foreign()) }
    }

    #[inline(always)]
    fn is_here(self) -> bool {
        self.word.load(Ordering::Relaxed) == self.id
    }

    /// No process has this number. (0 is what a fork's child finds until it opens something.)
    const NOBODY: u64 = u64::MAX;

    /// Whether `id` is this process's number.
    #[inline(always)]
    fn is(self, id: u64) -> bool {
        self.word.load(Ordering::Relaxed) == id
    }

    #[cold]
    fn foreign(self) -> Error {
        Error::new(errno::EPERM, format!("this handle was opened by process {}; a fork's child opens its own", self.id))
    }
}
