// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A queue of work that the kernel or a peer can delay, done by a few threads that no caller waits for.

use super::thread;
use parking_lot::Mutex;
use std::collections::VecDeque;

pub type Work = Box<dyn FnOnce() + Send>;

struct Queue {
    waiting: VecDeque<Work>,
    threads: usize,
    /// The process that owns the threads. A child of fork() has none of them.
    process: u32,
}

/// The queue and its threads, which start when work comes and end when the queue is empty.
pub struct WorkQueue {
    /// Name of the threads.
    name: &'static str,
    /// Largest number of threads. One piece of work can hold up one thread.
    max_threads: usize,
    list: Mutex<Queue>,
}

impl WorkQueue {
    pub const fn new(name: &'static str, max_threads: usize) -> WorkQueue {
        WorkQueue { name, max_threads, list: Mutex::new(Queue { waiting: VecDeque::new(), threads: 0, process: 0 }) }
    }

    /// Queues work. False: no thread could be started, so the work waits until one can.
    #[cold]
    pub fn give(&'static self, work: impl IntoIterator<Item = Work>) -> bool {
        let mut list = self.list.lock();
        let here = std::process::id();
        if std::mem::replace(&mut list.process, here) != here {
            list.threads = 0;
        }
        list.waiting.extend(work);
        let start = || thread::spawn(self.name, || self.run());
        if list.threads < self.max_threads && start().is_ok() {
            list.threads += 1;
        }
        list.threads > 0
    }

    /// Pieces of work that no thread has begun.
    pub fn waiting(&self) -> usize {
        self.list.lock().waiting.len()
    }

    fn run(&self) {
        loop {
            let mut list = self.list.lock();
            let Some(work) = list.waiting.pop_front() else {
                list.threads -= 1;
                return;
            };
            drop(list);
            work();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    /// No more threads than allowed, and each ends when the queue is empty.
    #[test]
    fn what_is_held_up_holds_up_no_more_than_its_thread() {
        static TWO: WorkQueue = WorkQueue::new("gdrfab-test", 2);
        let (go, held) = channel::<()>();
        let (say, hear) = channel();
        let later = |n| {
            let say = say.clone();
            Box::new(move || say.send(n).unwrap()) as Work
        };
        assert!(TWO.give([Box::new(move || _ = held.recv()) as Work]));
        assert!(TWO.give((0..5).map(later)));
        assert_eq!(hear.iter().take(5).collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
        drop(go);
        while TWO.list.lock().threads > 0 {
            std::thread::yield_now();
        }
        assert_eq!(TWO.waiting(), 0);
    }
}
