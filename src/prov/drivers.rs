// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The threads that make progress on a domain's endpoints, which are woken when there are more endpoints.

use super::queue::Counter;
use super::waiter::Waiter;
use parking_lot::Mutex;
use std::sync::{Arc, Weak};

/// The threads that sleep on all endpoints of a domain, and not only on the endpoints that are bound to one object: the
/// progress thread, and threads that wait for the counter of a region.
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
