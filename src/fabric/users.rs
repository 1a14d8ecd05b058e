// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Counts of the open objects that use another object, by kind. A close that is refused names them.

use crate::error::{Error, Result, errno};
use std::sync::atomic::{AtomicUsize, Ordering};

/// The kinds of objects that are opened in a fabric or a domain.
#[derive(Clone, Copy)]
pub(crate) enum ObjectKind {
    Domain,
    PassiveEndpoint,
    EventQueue,
    Endpoint,
    CompletionQueue,
    Counter,
    AddressVector,
}

/// In the order of `ObjectKind`.
const NAMES: [&str; 7] = ["domain", "passive endpoint", "event queue", "endpoint", "completion queue", "counter", "address vector"];

#[derive(Default)]
pub(crate) struct Users([AtomicUsize; NAMES.len()]);

impl Users {
    pub fn add(&self, kind: ObjectKind) {
        self.0[kind as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub fn remove(&self, kind: ObjectKind) {
        self.0[kind as usize].fetch_sub(1, Ordering::Release);
    }

    /// The kinds with open objects, each with their number.
    pub fn open(&self) -> Vec<(usize, &'static str)> {
        let counts = self.0.iter().zip(NAMES).map(|(count, name)| (count.load(Ordering::Acquire), name));
        counts.filter(|(count, _)| *count > 0).collect()
    }
}

/// Fails with `EBUSY` if any of `open` is not 0: "domain: 2 endpoints, 1 region are still open".
pub(crate) fn none_or_busy(what: &str, open: &[(usize, &str)]) -> Result<()> {
    let count = |(n, name): &(usize, &str)| match n {
        0 => None,
        1 => Some(format!("1 {name}")),
        n => Some(format!("{n} {name}s")),
    };
    let words: Vec<String> = open.iter().filter_map(count).collect();
    if words.is_empty() {
        return Ok(());
    }
    let are = if open.iter().map(|(n, _)| n).sum::<usize>() == 1 { "is" } else { "are" };
    Err(Error::new(errno::EBUSY, format!("{what}: {} {are} still open", words.join(", "))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_close_names_what_is_open() {
        let users = Users::default();
        let busy = |more: &[(usize, &str)]| none_or_busy("domain", &[users.open(), more.to_vec()].concat()).unwrap_err();
        users.add(ObjectKind::Endpoint);
        assert_eq!(busy(&[(0, "region")]).words, "domain: 1 endpoint is still open");
        users.add(ObjectKind::Endpoint);
        users.add(ObjectKind::Counter);
        assert_eq!(busy(&[(3, "region")]).words, "domain: 2 endpoints, 1 counter, 3 regions are still open");
        users.remove(ObjectKind::Endpoint);
        users.remove(ObjectKind::Endpoint);
        users.remove(ObjectKind::Counter);
        assert_eq!(busy(&[(1, "region")]).errno, errno::EBUSY);
        none_or_busy("domain", &users.open()).unwrap();
    }
}
