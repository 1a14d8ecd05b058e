// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Connection requests by number. The caller gets a number and not a pointer, so that a number used twice or an invented one
//! is an error and nothing worse.

use crate::prov::Request;
pub use crate::prov::info::RequestId;
use parking_lot::Mutex;
use std::collections::HashMap;

/// A request that waits for an answer, and the passive endpoint at which it arrived.
struct Pending {
    pep: usize,
    request: Box<dyn Request>,
}

static REQUESTS: Mutex<Option<(usize, HashMap<usize, Pending>)>> = Mutex::new(None);

/// Keeps a request that arrived at passive endpoint `pep`.
pub fn keep(pep: usize, request: Box<dyn Request>) -> RequestId {
    let mut guard = REQUESTS.lock();
    let (next, pending) = guard.get_or_insert_with(|| (0, HashMap::new()));
    // Numbers are never 0 and go in steps of 16, so that a small integer is rarely the number of a request.
    *next += 16;
    pending.insert(*next, Pending { pep, request });
    RequestId(*next)
}

/// Takes the request with this number; `None`: there is no such request.
pub fn take(id: RequestId) -> Option<Box<dyn Request>> {
    Some(REQUESTS.lock().as_mut()?.1.remove(&id.0)?.request)
}

/// As `take`, for a request that arrived at passive endpoint `pep`.
pub fn take_of(pep: usize, id: RequestId) -> Option<Box<dyn Request>> {
    let mut guard = REQUESTS.lock();
    let (_, pending) = guard.as_mut()?;
    if pending.get(&id.0)?.pep != pep {
        return None;
    }
    Some(pending.remove(&id.0)?.request)
}

/// Drops, and so rejects, the unanswered requests of a passive endpoint that closes.
pub fn forget(pep: usize) {
    let dropped: Vec<Pending> = match REQUESTS.lock().as_mut() {
        Some((_, pending)) => pending.extract_if(|_, h| h.pep == pep).map(|(_, h)| h).collect(),
        None => Vec::new(),
    };
    drop(dropped);
}
