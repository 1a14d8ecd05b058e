// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Who drives a domain's endpoints, and is told when there are more of them.

use super::queue::Counter;
use super::waiter::Waiter;
use parking_lot::Mutex;
use std::sync::{Arc, Weak};

/// Who sleeps on all endpoints of a domain, whatever they are bound to: its progress thread, and who waits for a counter of
/// a region.
#[derive(Default)]
pub struct Drivers {
    thread: Option<Arc<Waiter>>,
    counters: Mutex<Vec<Weak<Counter>>>,
}

impl Drivers {
    pub fn new(thread: Option<Arc<Waiter>>) -> Drivers {
        Drivers { thread, counters: Mutex::default() }
    }

    pub fn add(&self, counter: &Arc<Counter>) {
        let mut counters = self.counters.lock();
        counters.retain(|c| c.strong_count() > 0 && c.as_ptr() != Arc::as_ptr(counter));
        counters.push(Arc::downgrade(counter));
    }

    pub fn notify(&self) {
        if let Some(thread) = &self.thread {
            thread.notify();
        }
        self.counters.lock().iter().filter_map(Weak::upgrade).for_each(|c| c.waiter.notify());
    }
}
