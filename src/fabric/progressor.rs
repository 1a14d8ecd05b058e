// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The progress thread of a domain (`GDRFAB_PROGRESS_AUTO`). The thread runs the same wait as a caller does
//! (`wait.rs`), until it is told to stop. Such a wait makes progress on every endpoint of the domain.

use super::drive::EpRef;
use super::progress_set::ProgressSet;
use super::wait::{Driven, wait};
use crate::error::{Error, Result, errno};
use crate::prov::waiter::Waiter;
use crate::sync::serial::Threading;
use crate::sys::thread;
use parking_lot::Mutex;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};

struct Shared {
    set: ProgressSet,
    waiter: Arc<Waiter>,
    stop: AtomicBool,
}

/// The progress thread of a domain.
pub(crate) struct Progressor {
    shared: Arc<Shared>,
    thread: Mutex<Option<thread::Handle>>,
}

impl Progressor {
    pub fn start() -> Result<Progressor> {
        let waiter = Arc::<Waiter>::default();
        let of_set = waiter.clone();
        let set = ProgressSet::new(Threading::Safe, move || of_set.notify());
        let shared = Arc::new(Shared { set, waiter, stop: AtomicBool::new(false) });
        // The poller that the thread sleeps on is made now, where a failure can still be reported.
        drop(shared.waiter.arm()?);
        let of_thread = shared.clone();
        let thread = thread::spawn("gdrfab-progress", move || run(&of_thread))
            .map_err(|e| Error::new(e.raw_os_error().unwrap_or(errno::EAGAIN), format!("starting the progress thread: {e}")))?;
        Ok(Progressor { shared, thread: Mutex::new(Some(thread)) })
    }

    /// The waiter that the thread sleeps on.
    pub fn waiter(&self) -> Arc<Waiter> {
        self.shared.waiter.clone()
    }

    pub fn add(&self, ep: &EpRef) {
        self.shared.set.attach(ep);
    }

    /// Removes an endpoint. The thread may hold the endpoint a moment longer; it then finds the endpoint closed.
    pub fn remove(&self, ep: &EpRef) {
        self.shared.set.detach(ep);
        self.shared.waiter.notify();
    }

    pub fn stop(&self) {
        self.shared.stop.store(true, Ordering::Release);
        // Either the thread sees the flag before it sleeps, or `notify` sees that it is about to sleep.
        fence(Ordering::SeqCst);
        self.shared.waiter.notify();
        if let Some(thread) = self.thread.lock().take()
            && thread.join().is_err()
        {
            crate::log!(Error, "the progress thread panicked");
        }
    }
}

fn run(shared: &Shared) {
    let driven = || Some(Driven::new(&shared.set, Vec::new()));
    loop {
        // `notify` ends a sleep; the wait itself also ends after a second.
        let stopped = || shared.stop.load(Ordering::Acquire).then_some(());
        let turn = catch_unwind(AssertUnwindSafe(|| wait(&shared.waiter, driven, 1000, stopped)));
        match turn.unwrap_or(Err(Error::fixed(errno::ENOTRECOVERABLE, "a panic"))) {
            Ok(Some(())) => return,
            Ok(None) => {}
            Err(e) if e.errno == errno::EINTR => {}
            Err(e) => {
                crate::log!(Error, "progress thread: {e}");
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
        }
    }
}
