// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The completion queues of a side under test: takes their entries, and checks that no reservation is lost.

use gdrfab::error::Error;
use gdrfab::prov::Queue;
use gdrfab::prov::queue::{Completion, Taken};
use std::sync::Arc;

/// A queue and its size.
pub type WithSize = (Arc<Queue>, usize);

/// Takes up to `most` entries, of successes and of failures.
pub fn take(queue: &Queue, most: usize) -> Vec<(Completion, Option<Error>)> {
    let mut ended = Vec::new();
    while ended.len() < most {
        match queue.take(1, |_, c| ended.push((*c, None))) {
            Taken::Some(_) => {}
            Taken::Empty => break,
            Taken::ErrorFirst => ended.extend(queue.take_error().map(|(c, f, _)| (c, Some(f.error)))),
        }
    }
    ended
}

/// Checks that exactly as many entries can be reserved as the queue has.
pub fn all_free(queues: &[WithSize]) {
    for (queue, size) in queues {
        assert_eq!((0..=*size).take_while(|_| queue.reserve()).count(), *size, "entries of the queue are lost");
    }
}
